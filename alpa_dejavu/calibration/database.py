"""Measurements of Alpa's profiler as versioned JSON: collectives and matrix products, and apart what can't be right.

A database is the data of its file, as `DatabaseData` declares it: for each mesh its collectives (bytes
as `communication.learned.Collectives` counts them) and products (by their operations), each as columns with `seconds`,
and beside them what was left out and why.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util import units
from alpa_dejavu._util.format_fields import (
    WHOLE,
    GivenNotNegative,
    GivenPositive,
    Index,
    Number,
    Size,
    Text,
    Words,
    file_format,
    listed,
    stated,
)
from alpa_dejavu._util.json_file import read_checked
from alpa_dejavu.calibration.alpa_pickle import Result
from alpa_dejavu.costs.communication.learned import FILLED_IN, suspects

_REMEDY = "write it again with `alpa-dejavu calibration convert`"
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
_ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "s32": 4, "u8": 1}
_Fault = tuple[tuple[str | int, ...], str]
"""A place in a file, and what is wrong there."""


def sizes_of(series: SeriesData) -> list[float]:
    """Returns the sizes of a series of measurements: operations of a product, bytes of a collective."""
    return series["flop"] if series["name"] == "dot" else series["num_bytes"]


def read_database(path: pathlib.Path) -> DatabaseData:
    """Reads a converted database of Alpa's profiler; ValueError says where it is broken or of another version."""
    file = read_checked(path, DatabaseData, _REMEDY)
    for where, fault in _faults(file.data):
        raise file.problem(where, fault)
    return file.data


def _faults(data: DatabaseData) -> Iterator[_Fault]:
    """Yields what a file's schema can't see: devices, columns and rows that don't agree, each with its place."""
    meshes: set[tuple[Any, ...]] = set()
    for m, mesh in enumerate(data["meshes"]):
        hosts, devices = mesh["mesh"]
        if (mesh["cluster"], hosts, devices) in meshes:
            yield ("meshes", m, "mesh"), f"the mesh {hosts}x{devices} of {mesh['cluster']} is there twice; keep one"
        meshes.add((mesh["cluster"], hosts, devices))
        keys: set[str] = set()
        for n, series in enumerate(mesh["series"]):
            where: tuple[str | int, ...] = ("meshes", m, "series", n)
            named = f"mesh {hosts}x{devices} of {mesh['cluster']}: {series['name']} in {series['dtype']}"
            key = repr((series["name"], series["dtype"], series["groups"]))
            if key in keys:
                yield (*where, "name"), f"{named} is there twice for the groups {series['groups']}; keep one"
            keys.add(key)
            yield from ((place, f"{named}: {fault}") for place, fault in _series_faults(where, series, hosts * devices))


def _series_faults(where: tuple[str | int, ...], series: SeriesData, devices: int) -> Iterator[_Fault]:
    name, size = series["name"], _size_key(series["name"])
    if name == "dot":
        if series["groups"]:
            yield (*where, "groups"), f"the groups are {series['groups']}, but a product has none"
    else:
        yield from (((*where, key), fault) for key, fault in _collective_faults(series, devices))
    if size not in series:
        yield where, f"lacks {size!r}"
        return
    sizes, seconds = sizes_of(series), series["seconds"]
    if len(sizes) != len(seconds):
        yield (*where, "seconds"), f"has {len(sizes)} sizes and {len(seconds)} seconds; each size has its own"
        return
    for suspect in suspects(
        [name] * len(sizes), np.array(sizes, dtype=np.float64), np.array(seconds, dtype=np.float64)
    ):
        # Numbers are rounded when they are written, after which a row may be twice another that wasn't before.
        if suspect.reason != FILLED_IN:
            row, took = suspect.row, units.seconds(seconds[suspect.row])
            yield (*where, "seconds", row), f"row {row}, {sizes[row]:g} in {took}, is {suspect.reason}"


def _collective_faults(series: Mapping[str, Any], devices: int) -> Iterator[tuple[str, str]]:
    """Yields what is wrong with a collective's groups on a mesh of so many devices, and with its dtype; by key."""
    groups = series["groups"]
    fine = isinstance(groups, (tuple, list)) and bool(groups) and all(isinstance(g, (tuple, list)) for g in groups)
    members: Sequence[Any] = [member for group in groups for member in group] if fine else []
    equal = fine and len({len(group) for group in groups}) == 1
    present = all(isinstance(member, int) and 0 <= member < devices for member in members)
    if not (equal and members and present and len(set(members)) == len(members)):
        yield "groups", f"the groups are {groups!r}, but must be equally many of {devices} devices each"
    if series["dtype"] not in _ITEM_BYTES:
        yield "dtype", f"there is no such dtype (known are {', '.join(_ITEM_BYTES)})"


def converted(results: Mapping[Any, Any], path: pathlib.Path) -> DatabaseData:
    """Returns the checked results of Alpa's profiler as a converted database; ValueError says of which mesh not."""
    meshes = [_mesh(path, key, result) for key, result in results.items()]
    if not meshes:
        raise ValueError(f"{path} has no meshes: nothing was measured; give another database")
    return {"version": 1, "kind": "alpa-profiling-database", "units": "SI", "origin": path.name, "meshes": meshes}


def _mesh(path: pathlib.Path, key: Any, result: Any) -> MeshData:
    plain = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and isinstance(key[1], tuple)
    plain = plain and len(key[1]) == 2 and all(isinstance(n, int) and n > 0 for n in key[1])
    if not plain or not isinstance(result, Result):
        raise ValueError(f"{path}: {key!r} is no (cluster, (hosts, devices per host)) with a result; measure again")
    cluster, (hosts, devices) = key
    where = f"{path}: mesh {hosts}x{devices} of {cluster}"
    series: list[SeriesData] = []
    for name in (*_COLLECTIVES, "dot"):
        for (groups, dtype), rows in _costs(where, result, name).items():
            series.append(_series(where, name, () if name == "dot" else groups, dtype, rows, hosts * devices))
    memory = result.attributes.get("available_memory_per_device")
    if memory is not None and not (_is_number(memory) and math.isfinite(memory) and memory > 0):
        raise ValueError(f"{where}: available_memory_per_device is {memory!r}, but must be above 0; measure again")
    available = None if memory is None else float(memory)
    return {"cluster": cluster, "mesh": [hosts, devices], "available_bytes_per_device": available, "series": series}


def _costs(where: str, result: Result, name: str) -> Mapping[tuple[Any, Any], Any]:
    costs = result.attributes.get(f"{name}_cost_dict")
    # An empty database has a list there.
    if costs is None or costs == []:
        return {}
    if not isinstance(costs, dict) or not all(
        isinstance(key, tuple) and len(key) == 2 and isinstance(key[1], str) for key in costs
    ):
        raise ValueError(f"{where}: {name}_cost_dict isn't by (groups, dtype); measure again")
    return costs


def _series(where: str, name: str, groups: Any, dtype: str, rows: Any, devices: int) -> SeriesData:
    where = f"{where}: {name} in {dtype}"
    for _, fault in () if name == "dot" else _collective_faults({"groups": groups, "dtype": dtype}, devices):
        raise ValueError(f"{where}: {fault}; measure again")
    if not isinstance(rows, list):
        raise ValueError(f"{where}: is a {type(rows).__name__} in place of a list of sizes and seconds; measure again")
    unit = 1 if name == "dot" else _ITEM_BYTES[dtype]
    sizes, seconds = [], []
    for n, row in enumerate(rows):
        if not (isinstance(row, (tuple, list)) and len(row) == 2 and all(map(_is_number, row))):
            raise ValueError(f"{where}: row {n} is {row!r}, but must be a size and seconds; measure again")
        if not (math.isfinite(row[0]) and row[0] >= 0):
            raise ValueError(f"{where}: the size in row {n} is {row[0]!r}, but must be at least 0; measure again")
        sizes.append(int(row[0] * unit))
        seconds.append(float(row[1]))
    wrong = suspects([name] * len(rows), np.array(sizes, dtype=np.float64), np.array(seconds))
    kept = sorted(set(range(len(rows))) - {suspect.row for suspect in wrong})
    size, left_out = _size_key(name), list[Any]()
    for suspect in wrong:
        took = seconds[suspect.row] if math.isfinite(seconds[suspect.row]) else None
        left_out.append({size: sizes[suspect.row], "seconds": took, "reason": suspect.reason})
    series: Any = {
        "name": name,
        "dtype": dtype,
        "groups": [list(group) for group in groups],
        size: [sizes[n] for n in kept],
        "seconds": [seconds[n] for n in kept],
        "left_out": left_out,
    }
    checked: SeriesData = series
    return checked


def _size_key(name: str) -> str:
    return "flop" if name == "dot" else "num_bytes"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_Sizes: TypeAlias = Annotated[list[GivenNotNegative], listed("a list of sizes")]


class LeftOutData(TypedDict):
    """A measurement of Alpa's profiler that can't be right, and the reason, in a converted database."""

    num_bytes: NotRequired[GivenNotNegative]
    flop: NotRequired[GivenNotNegative]
    seconds: Annotated[Number | None, stated("a number, or null")]
    reason: Words


class SeriesData(TypedDict):
    """The seconds of a collective by bytes of its tensor, or of a matrix product by floating-point operations."""

    name: Annotated[
        Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter", "dot"], stated('a collective, or "dot"')
    ]
    dtype: Text
    groups: Annotated[
        list[Annotated[list[Index], listed("a list of devices", min_length=1)]], listed("a list of groups of devices")
    ]
    num_bytes: NotRequired[_Sizes]
    flop: NotRequired[_Sizes]
    seconds: Annotated[list[GivenPositive], listed("a list of seconds")]
    left_out: Annotated[
        list[Annotated[LeftOutData, stated("an object with a size, seconds and a reason")]],
        listed("a list of what can't be right"),
    ]


class MeshData(TypedDict):
    """A mesh and what Alpa's profiler measured on it, in a converted database."""

    cluster: Words
    mesh: Annotated[list[Size], listed("a list: hosts, and devices of each", min_length=2, max_length=2)]
    available_bytes_per_device: Annotated[GivenPositive | None, stated("a number above 0, or null")]
    series: Annotated[
        list[Annotated[SeriesData, stated("an object: what one operator took in several sizes")]],
        listed("a list of series"),
    ]


@file_format
class DatabaseData(TypedDict):
    """A file of the measurements of Alpa's profiler, converted from its pickle."""

    version: Annotated[Literal[1], stated("1, the version of converted databases that this release reads"), WHOLE]
    kind: Annotated[Literal["alpa-profiling-database"], stated('"alpa-profiling-database"')]
    units: Annotated[Literal["SI"], stated('"SI": seconds, bytes and operations without multiples')]
    origin: Annotated[str, stated("text: the file that it was converted from", min_length=1)]
    meshes: Annotated[
        list[Annotated[MeshData, stated("an object: what was measured on a mesh")]],
        listed("a list of meshes", min_length=1),
    ]
