"""Permutes the units of a network, so that they are in the order of another network's.

Two networks that began apart have their units in unlike orders, and the mean of them is neither. What changes the order
of a layer's units changes nothing of what the network does, if what reads them is permuted, too.

References:
    Ainsworth, Hayase and Srinivasa, Git Re-Basin: Merging Models modulo Permutation Symmetries, ICLR 2023.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from alpa_dejavu.training.initialization._layout import Array, Layout, Leaves, Tensor

Units: TypeAlias = Sequence[Mapping[str, int]]
Group: TypeAlias = tuple[tuple[int, int], ...]
_MOST_ROUNDS = 50


def groups_of(units: str | Units, layout: Layout) -> tuple[Group, ...]:
    """Returns the groups of tensor axes whose units must be permuted together; each group is pairs of a parameter's
    index and an axis of it.

    Args:
        units: "chain": the parameters are those of layers that follow each other, each with a matrix (inputs, outputs)
            and vectors of its outputs. Else one mapping for each group, from names of tensors, as `layout` has them, to
            the axis that the group's units are on.
        layout: the layout of the training states.

    Raises:
        ValueError: the parameters are no chain, there is no such tensor or axis, or a group's axes differ in length.
    """
    if isinstance(units, str):
        if units != "chain":
            raise ValueError(f"units is {units!r}, but must be 'chain', or a list of tensors' names with their axes")
        return _chain(layout.tensors)
    places = {tensor.name: place for place, tensor in enumerate(layout.tensors)}
    groups = []
    for unit in units:
        unknown = [name for name in unit if name not in places]
        if unknown:
            raise ValueError(f"units names {unknown[0]!r}, but the parameters are {', '.join(places)}")
        group = tuple((places[name], axis) for name, axis in unit.items())
        if any(not 0 <= axis < len(layout.tensors[place].shape) for place, axis in group):
            raise ValueError(f"units has axes {dict(unit)}, which the tensors haven't; count axes from 0")
        sizes = {layout.tensors[place].shape[axis] for place, axis in group}
        if len(sizes) != 1:
            raise ValueError(f"units has {dict(unit)}, axes of lengths {sorted(sizes)}; they must be equal")
        groups.append(group)
    return tuple(groups)


def aligned(weights: Leaves, like: Leaves, groups: Sequence[Group]) -> Leaves:
    """Returns the weights of a network with its units permuted into the order nearest to another network's.

    The units of one group of tensor axes after the other are permuted, until none changes.

    Args:
        weights: the network's arrays.
        like: those of the other network.
        groups: axes whose units are permuted together; each group is pairs of an array's index and an axis of it.
    """
    moved = list(weights)
    for _ in range(_MOST_ROUNDS):
        changed = [_reorder(moved, like, group) for group in groups]
        if not any(changed):
            break
    return tuple(moved)


def _reorder(weights: list[Array], like: Leaves, group: Group) -> bool:
    """Puts a group's units into the order nearest to another's, and returns whether they were in another one."""
    from scipy.optimize import linear_sum_assignment

    likeness = sum(_by_unit(like[place], axis) @ _by_unit(weights[place], axis).T for place, axis in group)
    order = linear_sum_assignment(likeness, maximize=True)[1]
    if (order == np.arange(len(order))).all():
        return False
    for place, axis in group:
        weights[place] = np.take(weights[place], order, axis=axis)
    return True


def _by_unit(weight: Array, axis: int) -> Array:
    return np.moveaxis(weight.astype(np.float64), axis, 0).reshape(weight.shape[axis], -1)


def _chain(tensors: Sequence[Tensor]) -> tuple[Group, ...]:
    found = (n for n, tensor in enumerate(tensors) if len(tensor.shape) == 2)
    matrices = sorted(found, key=lambda n: _natural(tensors[n].name))
    groups = []
    for first, then in itertools.pairwise(matrices):
        if tensors[first].shape[1] != tensors[then].shape[0]:
            raise ValueError(
                f"{tensors[first].name} has {tensors[first].shape[1]} outputs and {tensors[then].name} has "
                f"{tensors[then].shape[0]} inputs: no chain; give units= as names and axes"
            )
        layer = _layer(tensors[first].name)
        vectors = [(n, 0) for n, each in enumerate(tensors) if len(each.shape) == 1 and _layer(each.name) == layer]
        groups.append(((first, 1), *vectors, (then, 0)))
    used = {place for group in groups for place, _ in group}
    last = _layer(tensors[matrices[-1]].name) if matrices else ""
    strange = [tensor.name for n, tensor in enumerate(tensors) if n not in used and _layer(tensor.name) != last]
    if strange or not groups:
        raise ValueError(
            f"the parameters aren't a chain of layers ({strange[0] if strange else 'fewer than two matrices'}); "
            "give units= as names and axes"
        )
    return tuple(groups)


def _layer(name: str) -> str:
    return name.rpartition("[")[0]


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a key that sorts names by their numbers: Dense_10 comes after Dense_9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
