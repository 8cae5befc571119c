"""Packages that only some parts of this one need, which an extra of it installs."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import Any


def need(extra: str, package: str) -> None:
    """Raises RuntimeError, which says how to install it, unless a package that an extra brings is installed."""
    if importlib.util.find_spec(package) is None:
        raise _lacking(extra, package)


def from_extra(extra: str, module: str) -> Any:
    """Returns a module that an extra brings; raises RuntimeError, which says how to install it, if it isn't there."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise _lacking(extra, package) from error


def _lacking(extra: str, package: str) -> RuntimeError:
    return RuntimeError(f'{package} is not installed: pip install "alpa-dejavu[{extra}]"')


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """Yields optuna, which logs nothing but warnings meanwhile; raises RuntimeError if it isn't installed."""
    optuna = from_extra("optuna", "optuna")
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
