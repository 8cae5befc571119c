"""The stages that a slicing may be made of, without those that another one beats in everything.

What comes to a stage from the one before counts at its least; `Stages.after` says what a stage costs after each.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu._util.range_table import RangeArray, common_kinds, numbered
from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Stages:
    """The A stages that a slicing may be made of, as arrays of shape (A,), ordered by their layers.

    Attributes:
        first, last: the first and the last layer.
        size: how many devices it takes, as a multiple of `unit`.
        own_s: its seconds for one micro-batch, without the transfer from the stage before.
        cost_s: its seconds with the fastest such transfer.
        weight: what it adds to the sum over stages in the objective.
        followers: how many stages may follow for its memory's sake.
        covered: if so many stages follow or fewer, another stage of the same layers and devices is as good.
        choice: its index among the problem's pairs of submesh and config.
        transfers: the transfers from the stage before.
        per_transfer: how much a second of transfer adds to a weight.
        unit: a number of devices that the sizes of all submeshes are multiples of.
        limited: whether memory limits the followers of some of them more than layers and devices do.
        num_configs: how many configs each submesh has.
        unlike: the indices of some stages that cost all that any of them do, after whatever stage.
    """

    first: IntArray
    last: IntArray
    size: IntArray
    own_s: FloatArray
    cost_s: FloatArray
    weight: FloatArray
    followers: IntArray
    covered: IntArray
    choice: IntArray
    transfers: Transfers
    per_transfer: float
    unit: int
    limited: bool
    num_configs: int
    unlike: IntArray

    def submeshes(self, stages: IntArray) -> IntArray:
        return self.choice[stages] // self.num_configs

    def after(self, stages: IntArray, before: IntArray) -> FloatArray:
        """Returns the seconds of stages, by their indices, with the transfers from stages of the groups `before`."""
        of_class = self.transfers.of_class[self.submeshes(stages)]
        return self.own_s[stages] + self.transfers.seconds[self.first[stages], before, of_class]

    def chosen(self, stage: int) -> StageChoice:
        submesh, config = divmod(int(self.choice[stage]), self.num_configs)
        return StageChoice(int(self.first[stage]), int(self.last[stage]), submesh, config)


def stages_of(problem: SlicingProblem) -> Stages:
    """Returns all stages that a slicing may be made of, without those that another of the same layers and devices
    beats.

    One beats another if it costs no more, adds no more to the objective's sum and lets as many stages follow for its
    memory's sake; of equals the first one is kept.
    """
    num_configs, transfers = problem.costs_s.shape[3], Transfers.of(problem)
    sizes, columns = _by_size(problem, transfers)
    cuts = numbered(transfers.seconds)[:, None] * np.ones(problem.num_layers, dtype=np.int64)
    kinds = common_kinds((problem.costs_s, problem.followers, problem.once_s), cuts)

    def rows(table: RangeArray) -> NDArray[Any]:
        return np.ascontiguousarray(kinds.table(table).rows).reshape(len(kinds), -1)

    own, spare = rows(problem.costs_s), rows(problem.followers)
    costs = own + np.repeat(transfers.least[:, transfers.of_class], num_configs, axis=1)[kinds.firsts]
    weights: FloatArray = problem.num_micro_batches * costs if problem.objective == "work" else costs
    if problem.per_step_s is not None:
        weights = weights + rows(problem.per_step_s)
    per_transfer = {"inference": 0.0, "work": float(problem.num_micro_batches)}.get(str(problem.objective), 1.0)
    if problem.objective == "inference":
        weights = np.ones_like(costs)
    first, last, size, cost, weight, after, covered, choice, limited = _unbeaten(
        kinds.of_range, costs, weights, spare, sizes, columns, problem.num_devices
    )
    unit = math.gcd(*np.unique(size).tolist()) or 1
    of_stage = kinds.of_range[first, last]
    return Stages(
        first=first,
        last=last,
        size=size // unit,
        own_s=own[of_stage, choice],
        cost_s=cost,
        weight=weight,
        followers=after,
        covered=covered,
        choice=choice,
        transfers=transfers,
        per_transfer=per_transfer,
        unit=unit,
        limited=limited,
        num_configs=num_configs,
        unlike=np.unique(of_stage * costs.shape[1] + choice, return_index=True)[1],
    )


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Transfers:
    """The transfers to a stage from the one before, by G groups of sending submeshes and Q classes of receiving ones.

    Attributes:
        group: shape (S,), the group of each of S submeshes.
        of_class: shape (S,), the class of each submesh.
        seconds: shape (L, G, Q), the transfer from a group to a stage of a class that begins with layer l; row 0 is
            zero.
    """

    group: IntArray
    of_class: IntArray
    seconds: FloatArray

    @classmethod
    def of(cls, problem: SlicingProblem) -> Transfers:
        nowhere = np.zeros(len(problem.submesh_sizes), dtype=np.int64)
        if problem.sites is None:
            return cls(nowhere, nowhere, np.zeros((problem.num_layers, 1, 1)))
        links = unlike_links(problem.sites)
        group, of_class = numbered(links), numbered(links.T)
        sending, taking = (np.unique(numbers, return_index=True)[1] for numbers in (group, of_class))
        seconds = problem.sites.crossing_s[:, problem.sites.links[np.ix_(sending, taking)]]
        seconds[0] = 0.0
        return cls(group, of_class, seconds)

    @property
    def least(self) -> FloatArray:
        """Returns the seconds of the fastest transfer to a stage, by its first layer and class; shape (L, Q)."""
        return np.asarray(self.seconds.min(axis=1))


def unlike_links(sites: Sites) -> IntArray:
    """Returns a number for the link between each two submeshes, shape (S, S); the same one if transfers take equally
    long over them at every cut between layers.
    """
    return numbered(sites.crossing_s[1:].T)[sites.links]


@compiled("(i8[:, ::1], f8[:, ::1], f8[:, ::1], i8[:, ::1], i8[::1], i8[:, ::1], i8)")
def _unbeaten(
    of_range: IntArray,
    costs: FloatArray,
    weights: FloatArray,
    rooms: IntArray,
    sizes: IntArray,
    columns: IntArray,
    num_devices: int,
) -> tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray, IntArray, IntArray, IntArray, bool]:
    """Returns the unbeaten stages by layers, size and cost, and whether room matters.

    Costs, weights and rooms are by kind of range and choice; `of_range` has the kind of each range. The arrays say of
    each stage: first layer, last layer, size, cost, weight, room, what room is covered, choice.
    """
    num_layers = len(of_range)
    most_stages = num_layers * (num_layers + 1) // 2 * columns.size
    cost, weight = np.empty(most_stages), np.empty(most_stages)
    first, last, size = np.empty_like(cost, np.int64), np.empty_like(cost, np.int64), np.empty_like(cost, np.int64)
    spare, covered, choice = np.empty_like(first), np.empty_like(first), np.empty_like(first)
    followers = [(num_devices - devices) // sizes[0] for devices in sizes]
    kept, limited = 0, False
    for i in range(num_layers):
        for j in range(i, num_layers):
            left, kind = num_layers - 1 - j, of_range[i, j]
            for row in range(len(sizes)):
                most = min(left, followers[row])
                begin = end = kept
                for nth in range(columns.shape[1]):
                    column = columns[row, nth]
                    if column < 0:
                        break
                    a, b, c = costs[kind, column], weights[kind, column], min(rooms[kind, column], most)
                    if not (np.isfinite(a) and np.isfinite(b)) or c < min(left, 1):
                        continue
                    place = end
                    while place > begin and (a, b, -c) < (cost[place - 1], weight[place - 1], -spare[place - 1]):
                        cost[place], weight[place] = cost[place - 1], weight[place - 1]
                        spare[place], choice[place] = spare[place - 1], choice[place - 1]
                        place -= 1
                    cost[place], weight[place], spare[place], choice[place] = a, b, c, column
                    end += 1
                for n in range(begin, end):
                    covers = -1
                    for before in range(begin, kept):
                        if weight[before] <= weight[n]:
                            covers = max(covers, spare[before])
                    if spare[n] > covers:
                        first[kept], last[kept], size[kept], covered[kept] = i, j, sizes[row], covers
                        cost[kept], weight[kept], spare[kept], choice[kept] = cost[n], weight[n], spare[n], choice[n]
                        limited = limited or spare[n] < most
                        kept += 1
    return (
        first[:kept], last[:kept], size[:kept], cost[:kept],
        weight[:kept], spare[:kept], covered[:kept], choice[:kept], limited,
    )  # fmt: skip


def _by_size(problem: SlicingProblem, transfers: Transfers) -> tuple[IntArray, IntArray]:
    """Returns numbers of devices, ascending, and the choices of each that send and take in alike, padded by -1."""
    rows: dict[tuple[int, int, int], list[int]] = {}
    num_configs = problem.costs_s.shape[3]
    for s, key in enumerate(zip(problem.submesh_sizes, transfers.group, transfers.of_class, strict=True)):
        if key[0] <= problem.num_devices:
            rows.setdefault((int(key[0]), int(key[1]), int(key[2])), []).extend(
                range(s * num_configs, (s + 1) * num_configs)
            )
    keys = sorted(rows)
    most = max([1, *map(len, rows.values())])
    columns = [rows[key] + [-1] * (most - len(rows[key])) for key in keys]
    sizes = [size for size, *_ in keys]
    return np.array(sizes, dtype=np.int64), np.array(columns, dtype=np.int64).reshape(-1, most)
