"""Packages that only some parts of this one need, which an extra of it installs."""

from __future__ import annotations

import importlib.util

__all__ = ["need"]


def need(extra: str, *modules: str) -> None:
    """Raises an error unless modules are installed.

    Args:
        extra: the extra of alpa-dejavu that installs them.
        *modules: their names.

    Raises:
        RuntimeError: one isn't installed; says how to install it.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f'{", ".join(missing)} is not installed: pip install "alpa-dejavu[{extra}]"')
