"""The stages that a slicing may be made of, without those that another one beats in everything."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._covered_room import covered_room
from alpa_dejavu.problem import SlicingProblem, StageChoice

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """A stages, ordered by their layers.

    Attributes:
        first: shape (A,), the first layer.
        last: shape (A,), the last layer.
        size: shape (A,), how many times `unit` devices it takes.
        cost_s: shape (A,).
        weight: shape (A,), what is summed over the stages of a slicing.
        room: shape (A,), how many stages may follow.
        covered: shape (A,), with so many followers or fewer another one of the same layers and devices costs no more.
        choice: shape (A,), its place among the problem's submeshes and configs.
        unit: a number of devices that the sizes of all submeshes are multiples of.
        limited: whether room is less than what may follow anyway for some of them.
        num_configs: C.
    """

    first: IntArray
    last: IntArray
    size: IntArray
    cost_s: FloatArray
    weight: FloatArray
    room: IntArray
    covered: IntArray
    choice: IntArray
    unit: int
    limited: bool
    num_configs: int

    def chosen(self, stage: int) -> StageChoice:
        """A stage in the problem's own numbers."""
        submesh, config = divmod(int(self.choice[stage]), self.num_configs)
        return StageChoice(int(self.first[stage]), int(self.last[stage]), submesh, config)


def stages_of(problem: SlicingProblem) -> Stages:
    """The stages that may be part of a slicing, except those that another of the same layers and devices beats.

    One beats another if it costs no more, weighs no more and leaves as much room; of equals the first one is kept.
    """
    num_layers, num_configs = problem.num_layers, problem.costs_s.shape[3]
    first, last = np.triu_indices(num_layers)
    sizes, columns = _by_size(problem)

    def table(values: NDArray[Any], filler: float) -> NDArray[Any]:
        """(L, L, S, C) as (layers, sizes, choices of the size)."""
        flat = values.reshape(num_layers, num_layers, -1)[first, last]
        return np.where(columns < 0, filler, flat[:, columns])

    costs, once = table(problem.costs_s, np.inf), table(problem.once_s, 0.0)
    weights = costs + once
    if problem.objective == "inference":
        weights = np.ones_like(costs)
    elif problem.objective == "work":
        weights = problem.num_micro_batches * costs + once
    left = (num_layers - 1 - last)[:, None, None]
    most = left if not len(sizes) else np.minimum(left, (problem.num_devices - sizes)[:, None] // sizes.min())
    room = np.minimum(table(problem.room, -1).astype(np.int64), most)
    fits = np.isfinite(costs) & np.isfinite(weights) & (room >= np.minimum(left, 1))
    order = np.lexsort((-room, weights, np.where(fits, costs, np.inf)), axis=-1)
    fits, costs, weights, room, choice = (
        np.take_along_axis(np.broadcast_to(values, order.shape), order, axis=-1)
        for values in (fits, costs, weights, room, columns)
    )
    covered = covered_room(weights, room)
    kept = fits & (room > covered)
    row, column, _ = np.nonzero(kept)
    unit = math.gcd(*sizes.tolist()) or 1
    return Stages(
        first=first[row],
        last=last[row],
        size=sizes[column] // unit,
        cost_s=costs[kept],
        weight=weights[kept],
        room=room[kept],
        covered=covered[kept],
        choice=choice[kept],
        unit=unit,
        limited=bool((room < most)[kept].any()),
        num_configs=num_configs,
    )


def _by_size(problem: SlicingProblem) -> tuple[IntArray, IntArray]:
    """The different numbers of devices, and the choices that have each, filled up with -1; shape (sizes, most)."""
    of_choice = np.repeat(problem.submesh_sizes, problem.costs_s.shape[3])
    sizes = np.unique(of_choice[of_choice <= problem.num_devices])
    members = [np.flatnonzero(of_choice == size) for size in sizes]
    columns = np.full((len(sizes), max([1, *map(len, members)])), -1)
    for row, each in zip(columns, members, strict=True):
        row[: len(each)] = each
    return sizes, columns
