"""Where the user's cache is, for what planning keeps from one process to the next."""

from __future__ import annotations

import os
import pathlib

FOLDER, SIZE = "ALPA_DEJAVU_CACHE", "ALPA_DEJAVU_CACHE_MIB"
"""Environment variables: the folder, in place of the one in the user's cache, and what it may hold, in MiB."""
DEFAULT_MIB = 512.0


def cache_folder(part: str = "") -> pathlib.Path | None:
    """Returns the folder in which files may be kept; None where it may hold nothing, or there is no home.

    It is the environment variable ALPA_DEJAVU_CACHE, else `alpa-dejavu` in the user's cache directory, and in that a
    folder of the name `part`, if one is given. It needn't exist.

    Raises:
        ValueError: ALPA_DEJAVU_CACHE_MIB is no number from 0.

    References:
        XDG Base Directory Specification, version 0.8.
    """
    if most_mib() == 0:
        return None
    named = os.environ.get(FOLDER)
    if named:
        return pathlib.Path(named)
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # By the specification a relative directory is to be ignored.
        cache = pathlib.Path(cache_home) if os.path.isabs(cache_home) else pathlib.Path.home() / ".cache"
    except RuntimeError:
        return None
    return cache / "alpa-dejavu" / part


def most_mib() -> float:
    """Returns how many MiB the cache may hold: ALPA_DEJAVU_CACHE_MIB, or 512; ValueError for no number from 0."""
    text = os.environ.get(SIZE) or str(DEFAULT_MIB)
    try:
        most = float(text)
    except ValueError:
        most = -1.0
    if not 0 <= most < float("inf"):
        raise ValueError(f"{SIZE} is {text!r}, but must be a number of MiB; unset it for {DEFAULT_MIB:.0f}")
    return most
