"""This machine's memory."""

from __future__ import annotations

import os

__all__ = ["machine_memory_bytes"]


def machine_memory_bytes() -> float:
    """Returns the bytes of memory that this machine has."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
