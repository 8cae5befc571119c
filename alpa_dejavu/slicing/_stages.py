"""The stages that a slicing may be made of, without those that another one beats in everything."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._compiled import compiled
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
    sizes, columns = _by_size(problem)
    costs = np.array(problem.costs_s, order="C").reshape(num_layers, num_layers, -1)
    room = np.array(problem.room, order="C").reshape(costs.shape)
    weights = problem.num_micro_batches * costs if problem.objective == "work" else costs
    if problem.per_step_s is not None:
        weights = np.ascontiguousarray(weights + problem.per_step_s.reshape(costs.shape))
    if problem.objective == "inference":
        weights = np.ones_like(costs)
    first, last, size, cost, weight, after, covered, choice, limited = _unbeaten(
        costs, weights, room, sizes, columns, problem.num_devices
    )
    unit = math.gcd(*sizes.tolist()) or 1
    return Stages(
        first=first,
        last=last,
        size=size // unit,
        cost_s=cost,
        weight=weight,
        room=after,
        covered=covered,
        choice=choice,
        unit=unit,
        limited=limited,
        num_configs=num_configs,
    )


@compiled("(f8[:, :, ::1], f8[:, :, ::1], i8[:, :, ::1], i8[::1], i8[:, ::1], i8)")
def _unbeaten(
    costs: FloatArray, weights: FloatArray, rooms: IntArray, sizes: IntArray, columns: IntArray, num_devices: int
) -> tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray, IntArray, IntArray, IntArray, bool]:
    """The unbeaten ones by layers, size and cost, from tables of layers, layers and choices; whether room matters.

    Of each: first layer, last layer, size, cost, weight, room, what room is covered, choice.
    """
    num_layers = len(costs)
    most_stages = num_layers * (num_layers + 1) // 2 * columns.size
    cost, weight = np.empty(most_stages), np.empty(most_stages)
    first, last, size = np.empty_like(cost, np.int64), np.empty_like(cost, np.int64), np.empty_like(cost, np.int64)
    room, covered, choice = np.empty_like(first), np.empty_like(first), np.empty_like(first)
    followers = [(num_devices - each) // sizes[0] for each in sizes]
    kept, limited = 0, False
    for i in range(num_layers):
        for j in range(i, num_layers):
            left = num_layers - 1 - j
            for row in range(len(sizes)):
                most = min(left, followers[row])
                begin = end = kept
                for column in range(columns.shape[1]):
                    each = columns[row, column]
                    if each < 0:
                        break
                    a, b, c = costs[i, j, each], weights[i, j, each], min(rooms[i, j, each], most)
                    if not (np.isfinite(a) and np.isfinite(b)) or c < min(left, 1):
                        continue
                    place = end
                    while place > begin and (a, b, -c) < (cost[place - 1], weight[place - 1], -room[place - 1]):
                        cost[place], weight[place] = cost[place - 1], weight[place - 1]
                        room[place], choice[place] = room[place - 1], choice[place - 1]
                        place -= 1
                    cost[place], weight[place], room[place], choice[place] = a, b, c, each
                    end += 1
                for n in range(begin, end):
                    covers = -1
                    for before in range(begin, kept):
                        if weight[before] <= weight[n]:
                            covers = max(covers, room[before])
                    if room[n] > covers:
                        first[kept], last[kept], size[kept], covered[kept] = i, j, sizes[row], covers
                        cost[kept], weight[kept], room[kept], choice[kept] = cost[n], weight[n], room[n], choice[n]
                        limited = limited or room[n] < most
                        kept += 1
    return (
        first[:kept], last[:kept], size[:kept], cost[:kept],
        weight[:kept], room[:kept], covered[:kept], choice[:kept], limited,
    )  # fmt: skip


def _by_size(problem: SlicingProblem) -> tuple[IntArray, IntArray]:
    """The different numbers of devices, and the choices that have each, filled up with -1; shape (sizes, most)."""
    of_choice = [size for size in problem.submesh_sizes.tolist() for _ in range(problem.costs_s.shape[3])]
    sizes = sorted({size for size in of_choice if size <= problem.num_devices})
    members = [[choice for choice, each in enumerate(of_choice) if each == size] for size in sizes]
    most = max([1, *map(len, members)])
    columns = [each + [-1] * (most - len(each)) for each in members]
    return np.array(sizes, dtype=np.int64), np.array(columns, dtype=np.int64).reshape(-1, most)
