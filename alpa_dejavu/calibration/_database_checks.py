"""Checks for what can't be in a database of measurements: in what a profiler wrote, and in a file changed since."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu.costs.communication.learned import FILLED_IN, suspects

__all__ = ["ITEM_BYTES", "groups_fault", "size_name", "wrong_in"]

ITEM_BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "s32": 4, "u8": 1}
Wrong = tuple[tuple[str | int, ...], str]
"""A place in a file, and what is wrong there."""


def size_name(name: str) -> str:
    """Returns the key of an operator's sizes in a profiling database: "flop" (operations) for a matrix product, which
    is named "dot", and "num_bytes" for a collective.
    """
    return "flop" if name == "dot" else "num_bytes"


def groups_fault(groups: Any, devices: int) -> str | None:
    """Returns a text that says what is wrong with a collective's device groups on a mesh of so many devices; None if
    nothing is.
    """
    fine = isinstance(groups, (tuple, list)) and bool(groups) and all(isinstance(g, (tuple, list)) for g in groups)
    members: Sequence[Any] = [member for group in groups for member in group] if fine else []
    equal = fine and len({len(group) for group in groups}) == 1
    known = all(isinstance(member, int) and 0 <= member < devices for member in members)
    if equal and members and known and len(set(members)) == len(members):
        return None
    return f"the groups are {groups!r}, but must be equally many of {devices} devices each"


def wrong_in(data: Mapping[str, Any]) -> Iterator[Wrong]:
    """Yields faults of the JSON data of a profiling database, converted from Alpa's, that its schema can't see
    (devices, columns and rows that don't agree), each with its place in the file.
    """
    meshes: set[tuple[Any, ...]] = set()
    for m, mesh in enumerate(data["meshes"]):
        hosts, devices = mesh["mesh"]
        if (mesh["cluster"], hosts, devices) in meshes:
            yield ("meshes", m, "mesh"), f"the mesh {hosts}x{devices} of {mesh['cluster']} is there twice; keep one"
        meshes.add((mesh["cluster"], hosts, devices))
        series: set[str] = set()
        for n, one in enumerate(mesh["series"]):
            where: tuple[str | int, ...] = ("meshes", m, "series", n)
            named = f"mesh {hosts}x{devices} of {mesh['cluster']}: {one['name']} in {one['dtype']}"
            key = repr((one["name"], one["dtype"], one["groups"]))
            if key in series:
                yield (*where, "name"), f"{named} is there twice for the groups {one['groups']}; keep one"
            series.add(key)
            yield from ((place, f"{named}: {said}") for place, said in _of_series(where, one, hosts * devices))


def _of_series(where: tuple[str | int, ...], one: Mapping[str, Any], devices: int) -> Iterator[Wrong]:
    name, size = one["name"], size_name(one["name"])
    if name == "dot":
        if one["groups"]:
            yield (*where, "groups"), f"the groups are {one['groups']}, but a product has none"
    else:
        fault = groups_fault(one["groups"], devices)
        if fault is not None:
            yield (*where, "groups"), fault
        if one["dtype"] not in ITEM_BYTES:
            yield (*where, "dtype"), f"there is no such dtype (known are {', '.join(ITEM_BYTES)})"
    if size not in one:
        yield where, f"lacks {size!r}"
        return
    sizes, seconds = one[size], one["seconds"]
    if len(sizes) != len(seconds):
        yield (*where, "seconds"), f"has {len(sizes)} sizes and {len(seconds)} seconds; each size has its own"
        return
    for found in suspects([name] * len(sizes), np.array(sizes, dtype=np.float64), np.array(seconds, dtype=np.float64)):
        # Numbers are rounded when they are written, after which a row may be twice another that wasn't before.
        if found.reason != FILLED_IN:
            row = found.row
            took = units.seconds(seconds[row])
            yield (*where, "seconds", row), f"row {row}, {sizes[row]:g} in {took}, is {found.reason}"
