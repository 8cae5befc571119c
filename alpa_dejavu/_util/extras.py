"""Packages that only some parts of this one need, which an extra of it installs."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import Any


def need(extra: str, *modules: str) -> None:
    """Raises RuntimeError, which says how to install them, unless an extra's modules are installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f'{", ".join(missing)} is not installed: pip install "alpa-dejavu[{extra}]"')


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """Yields optuna, which logs nothing but warnings meanwhile; raises RuntimeError if it isn't installed."""
    try:
        import optuna
    except ImportError as error:
        raise RuntimeError('Optuna is not installed: pip install "alpa-dejavu[optuna]"') from error
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def installed_version(name: str) -> str | None:
    """Returns the version of an installed Python package; None where it isn't installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
