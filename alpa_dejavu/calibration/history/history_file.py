"""Where the history of past runs is."""

from __future__ import annotations

import os
import pathlib

VARIABLE = "ALPA_DEJAVU_HISTORY"


def default_path() -> pathlib.Path:
    """Returns the default path of the history of past runs, a file in the user's data directory.

    References:
        XDG Base Directory Specification, version 0.8.
    """
    data_home = os.environ.get("XDG_DATA_HOME", "")
    # By the specification a relative directory is to be ignored.
    data = pathlib.Path(data_home) if os.path.isabs(data_home) else pathlib.Path.home() / ".local" / "share"
    return data / "alpa-dejavu" / "history.sqlite"


def history_path(chosen: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Returns the path of the history of past runs: the given one, else that in the environment's ALPA_DEJAVU_HISTORY,
    else the default.
    """
    named = chosen or os.environ.get(VARIABLE)
    return pathlib.Path(named) if named else default_path()
