"""Calibration files: versioned JSON in SI units, checked when read, written whole or not at all."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.calibration._calibration import Calibration, Fit, MeasuredLink
from alpa_dejavu.calibration.measured_hosts import HostLinks, MeasuredHostMemory
from alpa_dejavu.calibration.text import calibration_text
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.problem import Device, Link

if TYPE_CHECKING:
    from alpa_dejavu.calibration.calibration_format import CalibrationData, HostLinksData, MeasuredLinkData, MemoryData

_State = TypeVar("_State")
_Model = TypeVar("_Model")

_REMEDY = (
    "write it again with `alpa-dejavu calibrate`, or leave it out: GPUs are predicted without one; "
    "`schemas/calibration-1.json` says what each key may be"
)


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Reads a calibration from its JSON file, and checks it; ValueError says where what is wrong, and what to do."""
    from alpa_dejavu.calibration.calibration_format import CalibrationData

    file = pathlib.Path(path)
    data = read_checked(file, CalibrationData, _REMEDY).data
    try:
        return _calibration(data)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{file}: {error}; {_REMEDY}") from error


def chosen_calibration(choice: str | os.PathLike[str] | Calibration) -> Calibration:
    """Returns the calibration that is given as a file's path or as an object.

    Raises:
        ValueError: there is no such file, or it is broken.
        TypeError: the choice is none of these.
    """
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
    """Writes a calibration to a JSON file, whole or not at all; ValueError where it can't, or where a number isn't
    finite.
    """
    write_whole(pathlib.Path(path), calibration_text(calibration))


def _calibration(data: CalibrationData) -> Calibration:
    """Returns the calibration that checked data holds: what figures have to do with each other is still unknown."""
    from alpa_dejavu.costs.communication.learned import FittedCollectives
    from alpa_dejavu.costs.latency import ProductCurve

    return Calibration(
        name=data["name"],
        origin=data["origin"],
        date=data["date"],
        fits=tuple(Fit(**fit) for fit in data.get("fits", ())),
        missing=tuple(data.get("missing", ())),
        products={
            name: {dtype: ProductCurve(**curve) for dtype, curve in curves.items()}
            for name, curves in data.get("products", {}).items()
        },
        devices={name: Device.of(figures) for name, figures in data.get("devices", {}).items()},
        device_spread=data.get("device_spread", {}),
        links=tuple(_link(link) for link in data.get("links", ())),
        memory=_memory(data["memory"]) if "memory" in data else None,
        host_links=_host_links(data["host_links"]) if "host_links" in data else None,
        host_memory={name: MeasuredHostMemory(**figures) for name, figures in data.get("host_memory", {}).items()},
        within=_model("within", FittedCollectives.of_state, data.get("within")),
        across=_model("across", FittedCollectives.of_state, data.get("across")),
    )


def _model(name: str, read: Callable[[_State], _Model], state: _State | None) -> _Model | None:
    """A fitted model, if it is there."""
    if state is None:
        return None
    try:
        return read(state)
    except ValueError as error:
        raise ValueError(f"{name} is no fitted model: {error}") from error


def _link(figures: MeasuredLinkData) -> MeasuredLink:
    first, second = figures["devices"]
    try:
        link = Link(**figures["link"])
    except ValueError as error:
        where = "within a host" if figures["within"] else "between hosts"
        raise ValueError(f"links, {first!r} to {second!r} {where}: {error}") from None
    return MeasuredLink((first, second), figures["within"], link, figures.get("spread", {}))


def _memory(residuals: MemoryData) -> MemoryResiduals:
    kinds: Mapping[str, Any] = residuals["log_ratios"]
    fields: dict[str, Any] = {**residuals}
    return MemoryResiduals(
        **fields | {"log_ratios": {kind: tuple(map(float, ratios)) for kind, ratios in kinds.items()}}
    )


def _host_links(data: HostLinksData) -> HostLinks:
    kinds = []
    listed: Sequence[Mapping[str, Any]] = data["kinds"]
    for n, figures in enumerate(listed):
        try:
            kinds.append(Link(**figures))
        except ValueError as error:
            raise ValueError(f"host_links.kinds[{n}], {_whose(data, n)}: {error}") from None
    wrong = sorted({n for row in data["links"] for n in row if n is not None and n >= len(kinds)})
    if wrong:
        raise ValueError(f"host_links.links names the kind {wrong[0]}, but there are {len(kinds)}")
    links = tuple(tuple(None if n is None else kinds[n] for n in row) for row in data["links"])
    return HostLinks(tuple(data["hosts"]), links, data.get("media", {}))


def _whose(data: HostLinksData, kind: int) -> str:
    """The first pair of hosts that has a kind of link."""
    pairs = [(a, b) for a, row in enumerate(data["links"]) for b, n in enumerate(row) if n == kind]
    hosts = dict(enumerate(data["hosts"]))
    a, b = next(iter(pairs), (-1, -1))
    return f"from {hosts.get(a)!r} to {hosts.get(b)!r}" if pairs else "which no hosts have"
