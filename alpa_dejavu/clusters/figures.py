"""Figures as machine and cluster files have them: {"value": number, "unit": text, "source": text}.

Dataclasses have them in SI units. The end of a key says which units its figure may have, as data sheets have them.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_origin

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.dataclass_format import data_of, keys_of, object_of
from alpa_dejavu._util.format_fields import GivenNotNegative, GivenPositive, Source, at_most, stated
from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu.problem import Cluster, Host, Link

_Part = TypeVar("_Part")
_UNITS: Mapping[str, Mapping[str, float]] = {
    "bytes_per_s": {
        "bytes/s": 1.0, "MB/s": 1e6, "GB/s": 1e9, "GiB/s": 2.0**30, "TB/s": 1e12,
        "Mbit/s": 1e6 / 8, "Gbit/s": 1e9 / 8, "Tbit/s": 1e12 / 8,
    },
    "flop_per_s": {"FLOP/s": 1.0, "GFLOP/s": 1e9, "TFLOP/s": 1e12, "PFLOP/s": 1e15},
    "bytes": {
        "bytes": 1.0, "kB": 1e3, "KiB": 2.0**10, "MB": 1e6, "MiB": 2.0**20, "GB": 1e9, "GiB": 2.0**30, "TB": 1e12,
        "TiB": 2.0**40,
    },
    "_s": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9},
    "price_per_hour": {"USD/hour": 1.0},
    "memory_margin": {"%": 0.01, "1": 1.0},
}  # fmt: skip
"""Units with their values in SI units, by the ends of keys."""
UNITS = {unit: value for units in _UNITS.values() for unit, value in units.items()}
_FROM_ZERO = ("_s", "price_per_hour", "memory_margin")
_WRITTEN = "written by alpa-dejavu"


def _ending(key: str) -> str | None:
    return next((end for end in _UNITS if key.endswith(end)), None)


@functools.cache
def figure_format(ending: str) -> Any:
    """Returns the type of a figure in a file, by the end of its key, such as "bytes_per_s"."""
    units = tuple(_UNITS[ending])
    value: Any = GivenNotNegative if ending in _FROM_ZERO else GivenPositive
    unit: Any = Literal[units]
    words = f"one of the units {', '.join(units)}" if len(units) > 1 else f'the unit "{units[0]}"'
    keys = {"value": value, "unit": Annotated[unit, stated(words)], "source": Source}
    name = "".join(word.capitalize() for word in ending.strip("_").split("_"))
    declared: Any = TypedDict(f"{'Seconds' if ending == '_s' else name}Data", keys)  # type: ignore[misc]
    declared.__doc__ = "A figure with its unit and its source."
    example = f'{{"value": {5 if "%" in units else 1}, "unit": "{units[0]}", "source": "where it is from"}}'
    return Annotated[declared, stated(f"an object such as {example}")]


def figures_format(name: str, kind: type[Any], doc: str, without: str = "", **own: Any) -> Any:
    """Returns the `TypedDict`, with a name and a docstring, of a dataclass's data in a file, whose figures have units.

    Files don't have the keys `without`; `own` are types of keys in place of the dataclass's, and of further keys.
    """
    keys: dict[str, Any] = {}
    for key, of_field in keys_of(kind).items():
        ending = _ending(key)
        declared = of_field
        if ending is not None:
            declared = figure_format(ending)
            if key == "flop_per_s":
                rates: Any = dict.__class_getitem__((str, declared))
                declared = Annotated[rates, stated("an object of rates by dtype"), at_most(100)]
            if get_origin(of_field) is NotRequired:
                declared = NotRequired[declared]
        if key not in without.split():
            keys[key] = declared
    typed_dict: Any = TypedDict(name, {**keys, **own})  # type: ignore[misc]
    typed_dict.__doc__ = doc
    return typed_dict


def si(figure: Mapping[str, Any]) -> float:
    """Returns the value of a figure of a file, such as {"value": 40, "unit": "GiB"}, converted to the SI unit."""
    return float(figure["value"]) * UNITS[figure["unit"]]


def of_figures(kind: type[_Part], data: Mapping[str, Any], **others: Any) -> _Part:
    """Returns the dataclass's value whose figures, with units, a file has; `others` are fields that it hasn't."""
    return object_of(kind, _in_si(data), **others)


def _in_si(data: Any) -> Any:
    if not isinstance(data, Mapping):
        return data
    return si(data) if "unit" in data else {key: _in_si(value) for key, value in data.items()}


def with_units(part: Any) -> dict[str, Any]:
    """Returns the data of a link, a device or memory, whose figures have SI units, for a file."""
    return {key: written_figure(key, value) for key, value in data_of(part).items()}


def written_figure(key: str, value: Any) -> Any:
    """Returns a value of an SI unit as a file has it under a key; values without a unit stay as they are."""
    if isinstance(value, Mapping):
        if key in ("small_products", "strided"):
            return value
        alike = "flop_per_s" if key == "flop_per_s" else "bytes_per_s" if key == "media" else None
        return {name: written_figure(alike or name, inner) for name, inner in value.items()}
    ending = _ending(key)
    if ending is None:
        return value
    unit = next(unit for unit, of_si in _UNITS[ending].items() if of_si == 1)
    return {"value": value, "unit": unit, "source": _WRITTEN}


def write_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Writes a cluster to a file that `named_cluster` and `--cluster` take; raises ValueError if it can't."""
    write_whole(pathlib.Path(path), cluster_text(cluster))


def cluster_text(cluster: Cluster) -> str:
    """Returns the JSON text of a cluster's file: a line for each host, and for the links of a host that are alike."""
    hosts = [_host(host, cluster.links[n][n]) for n, host in enumerate(cluster.hosts)]
    parts: dict[str, str] = {
        "version": "1",
        "name": json.dumps(cluster.name),
        "cores": json.dumps(cluster.cores),
        "hosts": _listed(hosts),
        "links": _listed(_links(cluster)),
    }
    if cluster.waiting:
        parts["waiting"] = json.dumps(cluster.waiting)
    if cluster.checkpoint_bytes_per_s is not None:
        figure = written_figure("checkpoint_bytes_per_s", cluster.checkpoint_bytes_per_s)
        parts["checkpoint_bytes_per_s"] = json.dumps(figure)
    if cluster.media:
        parts["media"] = json.dumps(written_figure("media", cluster.media))
    if cluster.reduction_servers:
        parts["reduction_servers"] = _listed([with_units(server) for server in cluster.reduction_servers])
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}\n"


def _listed(entries: Sequence[Mapping[str, Any]]) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]" if entries else "[]"


def _host(host: Host, within: Link) -> dict[str, Any]:
    figures = {name: getattr(host, name) for name in ("price_per_hour", "memory_margin")}
    return {
        "name": host.name,
        "devices": host.num_devices,
        **{name: written_figure(name, value) for name, value in figures.items() if value is not None},
        **({} if host.memory is None else {"host_memory": with_units(host.memory)}),
        "within": with_units(within),
        "device": with_units(host.device),
    }


def _links(cluster: Cluster) -> list[dict[str, Any]]:
    entries = []
    names = [host.name for host in cluster.hosts]
    for a, row in enumerate(cluster.links):
        alike: dict[Link, list[str]] = {}
        for b, link in enumerate(row):
            if b != a:
                alike.setdefault(link, []).append(names[b])
        entries += [{"from": [names[a]], "to": others, **with_units(link)} for link, others in alike.items()]
    return entries
