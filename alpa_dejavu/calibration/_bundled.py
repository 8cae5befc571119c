"""Calibrations that come with the package, and choosing one by name, by file or as an object."""

from __future__ import annotations

import os
import pathlib

from alpa_dejavu._util.near_names import near
from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.calibration._file import read_bundled, read_calibration

FOLDER = pathlib.Path(__file__).parent / "data"


def bundled_names() -> list[str]:
    """Returns the names of all calibrations (models and figures fitted to measured hardware) that come with the
    package.

    >>> "v100" in bundled_names()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def bundled(name: str) -> Calibration:
    """Returns the calibration (models and figures fitted to measured hardware) of this name that comes with the
    package.

    Raises:
        ValueError: there is none of this name.
    """
    names = bundled_names()
    if name not in names:
        raise ValueError(f"there is no bundled calibration {name!r}{near(name, names)} (there are {', '.join(names)})")
    return read_bundled(FOLDER / f"{name}.json")


def chosen_calibration(choice: str | os.PathLike[str] | Calibration) -> Calibration:
    """Returns the calibration (models and figures fitted to measured hardware) that is chosen by the name of one that
    comes with the package, by a file's path, or as an object; such a name goes before a file of that name.

    Raises:
        ValueError: there is no such name or file, or the file is broken.
        TypeError: the choice is none of these.
    """
    if isinstance(choice, Calibration):
        return choice
    if not isinstance(choice, (str, os.PathLike)):
        raise TypeError(f"calibration is {choice!r}; give a bundled name, a file, a Calibration, or None")
    name, names = os.fspath(choice), bundled_names()
    if name in names:
        return bundled(name)
    if not os.path.isfile(name):
        raise ValueError(
            f"there is no calibration {name!r}{near(name, names)} (bundled are {', '.join(names)}); or give the path "
            "of a file that `alpa-dejavu calibrate` wrote"
        )
    return read_calibration(name)
