"""The versions of packages that are installed."""

from __future__ import annotations

import importlib.metadata

__all__ = ["installed_version"]


def installed_version(name: str) -> str | None:
    """Returns the version of an installed Python package; None where it isn't installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
