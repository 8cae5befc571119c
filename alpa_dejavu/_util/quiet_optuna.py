"""Optuna, where it is installed, without its words about each study."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """Yields the imported module optuna, which logs nothing but warnings while a `with` block runs.

    Raises:
        RuntimeError: Optuna isn't installed.
    """
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
