"""Means of finalists, measured beside the best one alone, once their units are in one order.

Two networks that began apart have their units in unlike orders, and the mean of them is neither. What changes the order
of a layer's units changes nothing of what the network does, if what reads them is permuted, too.

References:
    Ainsworth, Hayase and Srinivasa, Git Re-Basin: Merging Models modulo Permutation Symmetries, ICLR 2023.
    Wortsman et al., Model Soups: Averaging Weights of Multiple Fine-Tuned Models Improves Accuracy without Increasing
    Inference Time, ICML 2022.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from alpa_dejavu.training.initialization._field import Field
from alpa_dejavu.training.initialization._layout import Array, Group, Leaves, StateLayout, Tensor
from alpa_dejavu.training.initialization._trainer import Runner, TrainingTask

Units: TypeAlias = Sequence[Mapping[str, int]]
_MOST_ROUNDS = 50


def groups_of(units: str | Units, layout: StateLayout) -> tuple[Group, ...]:
    """Returns the groups of tensor axes whose units must be permuted together.

    Args:
        units: "chain": the parameters are those of layers that follow each other, each with a matrix (inputs, outputs)
            and vectors of its outputs. Else one mapping for each group, from names of tensors, as `layout` has them, to
            the axis that the group's units are on.
        layout: that of the training states.

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
    """Returns the weights of a network with its units permuted into the order nearest to another network's: those of
    one group of axes after the other, until none changes.
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


MEASURED_STEPS = 4
"""Losses on so many batches, those that come next, say which is better."""
MOST_MEANS = 3


def best_of_means(field: Field, runner: Runner, order: tuple[int, ...]) -> int:
    """Returns the number of the candidate to train on: the best finalist, or a mean of finalists' weights that has a
    smaller loss on the same batches.

    Finalists are taken into the mean one after another, as long as it gets better, with their units permuted, where it
    is known which may be. Weights alone are averaged, not the optimizer's state.
    """
    members, best = [order[0]], order[0]
    for other in order[1 : 1 + MOST_MEANS] if field.setting.groups else ():
        if field.extra_left(field.at(best)) < 2 * MEASURED_STEPS:
            continue
        mean = field.adopt((*members, other), _mean([*members, other], field))
        mean_loss, best_loss = (_loss(field, runner, number) for number in (mean, best))
        if math.isinf(best_loss):
            field.drop(mean, f"workers that measured {best} died, so nothing is known to be better")
            return best
        names = ", ".join(map(str, [*members, other]))
        message = f"on the same batches, the mean of {names} has a loss of {mean_loss:.6g}, "
        if mean_loss < best_loss:
            if best != members[0]:
                field.drop(best, f"{message}that of fewer has {best_loss:.6g}")
            members.append(other)
            best = mean
        else:
            field.drop(mean, f"{message}{best} has {best_loss:.6g}")
    return best


def _mean(members: list[int], field: Field) -> Leaves:
    """Returns the first one's state with the mean of all weights, units in the first one's order."""
    layout = field.layout
    first, *others = (field.store.get(number) for number in members)
    own = layout.weights(first)
    rows = zip(own, *(aligned(layout.weights(other), own, field.setting.groups) for other in others), strict=True)
    return layout.with_weights(first, tuple(
        np.mean([weight.astype(np.float64) for weight in row], axis=0) if tensor.is_float else row[0]
        for row, tensor in zip(rows, layout.tensors, strict=True)
    ))  # fmt: skip


def _loss(field: Field, runner: Runner, number: int) -> float:
    """Returns a candidate's mean loss on the batches that come next; nothing is trained."""
    candidate = field.candidates[number]
    carried = candidate.batch_rows, field.rates([number])
    tasks = [TrainingTask((number,), 1, candidate.step, MEASURED_STEPS, *carried, is_measure=True)]
    loss = math.inf
    for outcome in runner.outcomes(lambda: tasks.pop() if tasks else None):
        field.count(outcome.task)
        if not outcome.lost:
            loss = float(outcome.losses.mean())
    return loss
