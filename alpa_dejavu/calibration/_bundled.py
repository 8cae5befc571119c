"""Calibrations that come with the package, and choosing one by name, by file or as an object."""

from __future__ import annotations

import dataclasses
import os
import pathlib

from alpa_dejavu._util.near_names import near
from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.calibration._file import read_bundled, read_calibration

FOLDER = pathlib.Path(__file__).parent / "data"
JOINT = "+"
"""What stands between the names of bundled calibrations that are joined."""


def bundled_names() -> list[str]:
    """Returns the names of all calibrations (models and figures fitted to measured hardware) that come with the
    package.

    >>> "v100" in bundled_names()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def is_bundled(name: str) -> bool:
    """Returns whether a name is that of a calibration that comes with the package, or of several ones joined by "+".

    >>> is_bundled("t4+v100"), is_bundled("none")
    (True, False)
    """
    return set(name.split(JOINT)) <= set(bundled_names())


def bundled(name: str) -> Calibration:
    """Returns the calibration (models and figures fitted to measured hardware) of this name that comes with the
    package; of several names joined by "+", one that knows the devices of all of them.

    Raises:
        ValueError: there is none of this name.
    """
    names = bundled_names()
    parts = sorted(set(name.split(JOINT)))
    for part in parts:
        if part not in names:
            known = f"{near(part, names)} (there are {', '.join(names)})"
            raise ValueError(f"there is no bundled calibration {part!r}{known}")
    found = [read_bundled(FOLDER / f"{part}.json") for part in parts]
    return found[0] if len(found) == 1 else _joined(found)


def _joined(parts: list[Calibration]) -> Calibration:
    """One calibration that knows the devices of several bundled ones, which share one model of kernels."""
    missing = [f"{part.name}: {sentence}" for part in parts for sentence in part.missing]
    fits = [dataclasses.replace(fit, part=f"{fit.part} ({part.name})") for part in parts for fit in part.fits]
    return Calibration(
        name=JOINT.join(part.name for part in parts),
        origin="; ".join(part.origin for part in parts),
        date=max(part.date for part in parts),
        sheets={name: sheet for part in parts for name, sheet in part.sheets.items()},
        kernels=parts[0].kernels,
        products={name: curves for part in parts for name, curves in part.products.items()},
        fits=tuple(fit for fit in fits if not fit.part.startswith("collectives")),
        missing=(*missing, "collectives of unlike devices: none was measured; all go by the alpha-beta model"),
    )


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
    if is_bundled(name):
        return bundled(name)
    if not os.path.isfile(name):
        raise ValueError(
            f"there is no calibration {name!r}{near(name, names)} (bundled are {', '.join(names)}); or give the path "
            "of a file that `alpa-dejavu calibrate` wrote"
        )
    return read_calibration(name)
