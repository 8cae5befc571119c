"""JSON text that is short, and the same wherever it is written: numbers with nine digits, lists of them in lines."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from alpa_dejavu.calibration.measured_hosts import HostLinks, MeasuredHostMemory
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


def _host_memory_text(memory: MeasuredHostMemory) -> dict[str, Any]:
    """Figures that were measured; an empty folder and empty mappings are left out."""
    data = dataclasses.asdict(memory)
    return {name: value for name, value in data.items() if value is not None and value not in ("", {})}


def _host_links_text(host_links: HostLinks) -> dict[str, Any]:
    """Each link once, and a matrix of their numbers."""
    kinds = list(dict.fromkeys(link for row in host_links.links for link in row if link is not None))
    matrix = [[None if link is None else kinds.index(link) for link in row] for row in host_links.links]
    listed = [_without_none(link) for link in kinds]
    return {"hosts": list(host_links.hosts), "kinds": listed, "links": matrix, "media": dict(host_links.media)}


_DIGITS = 9
"""Significant ones: more differ between processors."""
_WIDTH = 120


def json_text(value: Any) -> str:
    """Returns a value as the text of a JSON document: an object's keys in lines of their own, lists of scalars folded.

    Raises:
        ValueError: a number isn't finite, or something isn't of JSON's types; says where.

    >>> print(json_text({"ends": [1 / 3, 2], "name": "a b"}), end="")
    {
     "ends": [0.333333333, 2],
     "name": "a b"
    }
    """
    return _text(value, "", "") + "\n"


def _text(value: Any, indent: str, where: str) -> str:
    deeper = f"{indent} "
    if isinstance(value, Mapping):
        items = [f"{json.dumps(key)}: {_text(item, deeper, f'{where}.{key}')}" for key, item in value.items()]
        return _lines("{", items, "}", indent)
    if not isinstance(value, (list, tuple)):
        return _scalar(value, where)
    if any(isinstance(item, (Mapping, list, tuple)) for item in value):
        return _lines("[", [_text(item, deeper, f"{where}[{n}]") for n, item in enumerate(value)], "]", indent)
    items = [_scalar(item, f"{where}[{n}]") for n, item in enumerate(value)]
    line = f"[{', '.join(items)}]"
    if len(line) <= _WIDTH or any(isinstance(item, str) for item in value):
        return line if len(line) <= _WIDTH else _lines("[", items, "]", indent)
    # A number such as 1e-05 stays in one piece.
    folded = textwrap.wrap(line, _WIDTH, subsequent_indent=deeper, break_long_words=False, break_on_hyphens=False)
    return "\n".join(folded)


def _lines(opening: str, items: list[str], closing: str, indent: str) -> str:
    if not items:
        return opening + closing
    joined = f",\n{indent} ".join(items)
    return f"{opening}\n{indent} {joined}\n{indent}{closing}"


def _scalar(value: Any, where: str) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where.lstrip('.')} is {value!r}, which no calibration may hold; fit it again")
        return json.dumps(float(f"{value:.{_DIGITS}g}"))
    if value is None or isinstance(value, (bool, int, str)):
        return json.dumps(value)
    raise ValueError(f"{where.lstrip('.')} is {value!r}, but must be text or a number")
