"""Measurements of Alpa's profiler as versioned JSON: collectives and matrix products, and apart what can't be right.

A file has `version` 1, `kind` "alpa-profiling-database", and for each mesh its collectives (bytes as
`communication.learned.Collectives` counts them) and products (by their operations), each as columns with `seconds`, and
beside them what was left out and why.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu._util.json_file import read_checked
from alpa_dejavu.calibration._database_checks import ITEM_BYTES, groups_fault, size_name, wrong_in
from alpa_dejavu.calibration.alpa_pickle import Result
from alpa_dejavu.costs.communication.learned import suspects

__all__ = ["DATABASE_KIND", "Database", "MeshProfile", "Series", "converted", "database_data", "read_database"]

DATABASE_KIND = "alpa-profiling-database"
_VERSION = 1
_REMEDY = "write it again with `alpa-dejavu calibration convert`"
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")


@final
@dataclasses.dataclass(frozen=True)
class Series:
    """A series of measured seconds of one operator in several sizes.

    Attributes:
        name: the name of a collective, or "dot" for a matrix product.
        dtype: its element type, as Alpa writes it, such as "f32".
        groups: the groups of devices that run it, all at the same time; none for a product.
        sizes: bytes of a collective, operations of a product.
        seconds: the measured seconds of each size.
        left_out: size, seconds (None where they aren't finite) and reason of each measurement that can't be right.
    """

    name: str
    dtype: str
    groups: tuple[tuple[int, ...], ...]
    sizes: tuple[float, ...]
    seconds: tuple[float, ...]
    left_out: tuple[tuple[float, float | None, str], ...] = ()


@final
@dataclasses.dataclass(frozen=True)
class MeshProfile:
    """A mesh (hosts x devices per host) on which Alpa's profiler ran: its measurements (`series`), and the bytes free
    on a device if known.
    """

    cluster: str
    hosts: int
    devices_per_host: int
    available_bytes: float | None
    series: tuple[Series, ...]


@final
@dataclasses.dataclass(frozen=True)
class Database:
    """The measurements of Alpa's profiler: the name of the file that they are from, and those of each mesh."""

    origin: str
    meshes: tuple[MeshProfile, ...]


def converted(found: Mapping[Any, Any], path: pathlib.Path) -> Database:
    """Checks the unpickled results of Alpa's profiler (by cluster and mesh shape), and returns them as a `Database`;
    `path` is the file that they were read from.

    Raises:
        ValueError: something isn't what Alpa's profiler writes; says of which mesh.
    """
    meshes = [_mesh(path, key, result) for key, result in found.items()]
    if not meshes:
        raise ValueError(f"{path} has no meshes: nothing was measured; give another database")
    return Database(path.name, tuple(meshes))


def database_data(database: Database) -> dict[str, Any]:
    """Returns a database of Alpa's profiler as the JSON object of its file."""
    meshes = [
        {
            "cluster": mesh.cluster,
            "mesh": [mesh.hosts, mesh.devices_per_host],
            "available_bytes_per_device": mesh.available_bytes,
            "series": [
                {
                    "name": one.name,
                    "dtype": one.dtype,
                    "groups": [list(group) for group in one.groups],
                    size_name(one.name): [int(size) for size in one.sizes],
                    "seconds": list(one.seconds),
                    "left_out": [
                        {size_name(one.name): int(size), "seconds": seconds, "reason": reason}
                        for size, seconds, reason in one.left_out
                    ],
                }
                for one in mesh.series
            ],
        }
        for mesh in database.meshes
    ]
    return {"version": _VERSION, "kind": DATABASE_KIND, "units": "SI", "origin": database.origin, "meshes": meshes}


def read_database(path: pathlib.Path) -> Database:
    """Reads a database of Alpa's profiler from the JSON file that it was converted to.

    Raises:
        ValueError: there is no such file, or it is broken, of another version, or was changed to what can't be; says
            where.
    """
    from alpa_dejavu.calibration.database_format import DatabaseData

    file = read_checked(path, DatabaseData, _REMEDY)
    data = file.data
    for where, said in wrong_in(data):
        raise file.problem(where, said)
    meshes = []
    for mesh in data["meshes"]:
        series = []
        listed: Sequence[Mapping[str, Any]] = mesh["series"]
        for one in listed:
            size = size_name(one["name"])
            left_out = tuple((row.get(size, 0.0), row["seconds"], row["reason"]) for row in one["left_out"])
            groups = tuple(map(tuple, one["groups"]))
            series.append(Series(one["name"], one["dtype"], groups, tuple(one[size]), tuple(one["seconds"]), left_out))
        hosts, devices = mesh["mesh"]
        meshes.append(MeshProfile(mesh["cluster"], hosts, devices, mesh["available_bytes_per_device"], tuple(series)))
    return Database(data["origin"], tuple(meshes))


def _mesh(path: pathlib.Path, key: Any, result: Any) -> MeshProfile:
    plain = isinstance(key, tuple) and len(key) == 2 and isinstance(key[0], str) and _are_counts(key[1], 2)
    if not plain or not isinstance(result, Result):
        raise ValueError(f"{path}: {key!r} is no (cluster, (hosts, devices per host)) with a result; measure again")
    cluster, (hosts, devices) = key
    where = f"{path}: mesh {hosts}x{devices} of {cluster}"
    series: list[Series] = []
    for name in _COLLECTIVES:
        costs = _costs(where, result, name)
        series += [_series(where, name, *key, rows, hosts * devices) for key, rows in costs.items()]
    series += [_series(where, "dot", (), dtype, rows, 0) for (_, dtype), rows in _costs(where, result, "dot").items()]
    memory = result.attributes.get("available_memory_per_device")
    if memory is not None and not (_is_number(memory) and math.isfinite(memory) and memory > 0):
        raise ValueError(f"{where}: available_memory_per_device is {memory!r}, but must be above 0; measure again")
    return MeshProfile(cluster, hosts, devices, None if memory is None else float(memory), tuple(series))


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


def _series(where: str, name: str, groups: Any, dtype: str, rows: Any, devices: int) -> Series:
    where = f"{where}: {name} in {dtype}"
    if name != "dot":
        fault = groups_fault(groups, devices)
        if fault is not None:
            raise ValueError(f"{where}: {fault}; measure again")
        if dtype not in ITEM_BYTES:
            raise ValueError(f"{where}: there is no such dtype (known are {', '.join(ITEM_BYTES)}); measure again")
    if not isinstance(rows, list):
        raise ValueError(f"{where}: is a {type(rows).__name__} in place of a list of sizes and seconds; measure again")
    unit = 1 if name == "dot" else ITEM_BYTES[dtype]
    sizes, seconds = [], []
    for n, row in enumerate(rows):
        if not (isinstance(row, (tuple, list)) and len(row) == 2 and all(map(_is_number, row))):
            raise ValueError(f"{where}: row {n} is {row!r}, but must be a size and seconds; measure again")
        if not (math.isfinite(row[0]) and row[0] >= 0):
            raise ValueError(f"{where}: the size in row {n} is {row[0]!r}, but must be at least 0; measure again")
        sizes.append(float(row[0] * unit))
        seconds.append(float(row[1]))
    wrong = {one.row: one.reason for one in suspects([name] * len(rows), np.array(sizes), np.array(seconds))}
    kept = [n for n in range(len(rows)) if n not in wrong]
    left_out = [(sizes[n], seconds[n] if math.isfinite(seconds[n]) else None, why) for n, why in wrong.items()]
    return Series(
        name, dtype, tuple(map(tuple, groups)), tuple(sizes[n] for n in kept), tuple(seconds[n] for n in kept),
        tuple(left_out),
    )  # fmt: skip


def _are_counts(value: Any, length: int) -> bool:
    return isinstance(value, tuple) and len(value) == length and all(isinstance(n, int) and n > 0 for n in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
