"""Optuna, where it is installed, without its words about each study."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet_optuna() -> Iterator[Any]:
    """The module; in the block it tells of warnings alone.

    Raises:
        RuntimeError: it isn't installed.
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
