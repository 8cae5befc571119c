"""A calibration as the text of its file."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from alpa_dejavu.calibration._host_links import HostLinks
from alpa_dejavu.calibration.host_memory import MeasuredHostMemory
from alpa_dejavu.calibration.text import json_text
from alpa_dejavu.problem import Device, Link

if TYPE_CHECKING:
    from alpa_dejavu.calibration._calibration import Calibration

VERSION = 1
"""The version of calibration files. A file of another version is refused."""


def calibration_text(calibration: Calibration) -> str:
    """Returns the JSON text of a calibration's file; parts that the calibration lacks are left out."""
    models = {name: getattr(calibration, name) for name in ("within", "across")}
    data: dict[str, Any] = {
        "version": VERSION,
        "units": "SI",
        "name": calibration.name,
        "origin": calibration.origin,
        "date": calibration.date,
        "fits": [dataclasses.asdict(fit) for fit in calibration.fits],
        "missing": list(calibration.missing),
        "products": {
            name: {dtype: dataclasses.asdict(curve) for dtype, curve in curves.items()}
            for name, curves in calibration.products.items()
        },
        "devices": {name: _without_none(device) for name, device in calibration.devices.items()},
        "device_spread": {name: dict(spread) for name, spread in calibration.device_spread.items()},
        "links": [{**dataclasses.asdict(link), "link": _without_none(link.link)} for link in calibration.links],
        "memory": {} if calibration.memory is None else dataclasses.asdict(calibration.memory),
        "host_links": {} if calibration.host_links is None else _host_links_text(calibration.host_links),
        "host_memory": {name: _host_memory_text(memory) for name, memory in calibration.host_memory.items()},
        **{name: model.state() for name, model in models.items() if model is not None},
    }
    return json_text({key: value for key, value in data.items() if value not in ([], {})})


def _without_none(figures: Device | Link) -> dict[str, Any]:
    return dataclasses.asdict(
        figures, dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None and value != ()}
    )


def _host_memory_text(found: MeasuredHostMemory) -> dict[str, Any]:
    """Figures that were measured; an empty folder and empty mappings are left out."""
    data = dataclasses.asdict(found)
    return {name: value for name, value in data.items() if value is not None and value not in ("", {})}


def _host_links_text(found: HostLinks) -> dict[str, Any]:
    """Each link once, and a matrix of their numbers."""
    kinds = list(dict.fromkeys(link for row in found.links for link in row if link is not None))
    matrix = [[None if link is None else kinds.index(link) for link in row] for row in found.links]
    listed = [_without_none(link) for link in kinds]
    return {"hosts": list(found.hosts), "kinds": listed, "links": matrix, "media": dict(found.media)}
