"""Calibration files: versioned JSON in SI units, checked when read, written whole or not at all."""

from __future__ import annotations

import functools
import os
import pathlib
from typing import Annotated, Any, Literal

from alpa_dejavu._util.dataclass_format import typed_dict_of
from alpa_dejavu._util.format_fields import WHOLE, stated
from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.calibration._calibration import VERSION, Calibration

_REMEDY = (
    "write it again with `alpa-dejavu calibrate`, or leave it out: GPUs are predicted without one; "
    "`schemas/calibration-1.json` says what each key may be"
)


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Reads a calibration from its JSON file, and checks it; ValueError says where what is wrong, and what to do."""
    return read_checked(pathlib.Path(path), calibration_format(), _REMEDY).described(Calibration)


@functools.cache
def calibration_format() -> Any:
    """Returns the `TypedDict` of a calibration file's data: every key, and what it must be, in SI units."""
    version = stated(f"{VERSION}, the version of calibrations that this release reads")
    head = {
        "version": Annotated[Literal[VERSION], version, WHOLE],
        "units": Annotated[Literal["SI"], stated('"SI": seconds, bytes and operations without multiples')],
    }
    return typed_dict_of(Calibration, head)


def chosen_calibration(choice: str | os.PathLike[str] | Calibration) -> Calibration:
    """Returns the calibration of a path, or given as an object; ValueError if the file is broken, else TypeError."""
    if isinstance(choice, Calibration):
        return choice
    if not isinstance(choice, (str, os.PathLike)):
        raise TypeError(f'calibration is {choice!r}; give a file, a Calibration, "none" or None')
    if not os.path.isfile(choice):
        raise ValueError(
            f"there is no calibration {os.fspath(choice)!r}; give the path of a file that `alpa-dejavu calibrate` "
            "wrote, or leave it out: GPUs are predicted without one"
        )
    return read_calibration(choice)


def write_calibration(calibration: Calibration, path: str | os.PathLike[str]) -> None:
    """Writes a calibration to a JSON file, whole or not at all; ValueError where it can't, or a number is infinite."""
    write_whole(pathlib.Path(path), calibration.text)
