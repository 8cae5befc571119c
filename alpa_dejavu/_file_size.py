"""How much a file may take in memory once it is unpacked: it may come from anyone, and be small and unfold to much."""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "most_bytes"]

VARIABLE = "ALPA_DEJAVU_FILE_MIB"
"""The environment variable that says it, in MiB."""
_DEFAULT_MIB = 1024.0


def most_bytes() -> float:
    """What the environment has in ALPA_DEJAVU_FILE_MIB, else 1 GiB.

    Raises:
        ValueError: that is no number above 0.
    """
    given = os.environ.get(VARIABLE) or str(_DEFAULT_MIB)
    try:
        mib = float(given)
    except ValueError:
        mib = 0.0
    if not 0 < mib < float("inf"):
        raise ValueError(
            f"{VARIABLE} is {given!r}, but must be a number of MiB above 0; unset it for {_DEFAULT_MIB:.0f}"
        )
    return mib * 2**20
