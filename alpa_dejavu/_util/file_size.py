"""Limits on how much is read of a file, and on its memory once it is unpacked: it may come from anyone."""

from __future__ import annotations

import os

VARIABLE = "ALPA_DEJAVU_FILE_MIB"
"""The environment variable that sets these limits, in MiB."""
_MOST_MIB = 2.0**40
"""More MiB than any machine has."""
UNPACKED_MIB = 1024.0
"""The MiB that a file may take once it is unpacked, where the environment says nothing."""


def most_bytes(default_mib: float = UNPACKED_MIB) -> float:
    """Returns the largest size, in bytes, that a file to read may have: the MiB that the environment variable
    ALPA_DEJAVU_FILE_MIB sets, else `default_mib`; ValueError for no number above 0, or more MiB than any machine has.
    """
    text = os.environ.get(VARIABLE) or str(default_mib)
    try:
        mib = float(text)
    except ValueError:
        mib = 0.0
    if not 0 < mib <= _MOST_MIB:
        raise ValueError(
            f"{VARIABLE} is {text!r}, but must be a number of MiB above 0, and at most {_MOST_MIB:.0f}; unset it for "
            f"{default_mib:.0f}"
        )
    return mib * 2**20
