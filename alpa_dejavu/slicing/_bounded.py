"""The dynamic program for one bound: the least sum when no stage costs more than that.

First without regard to how many stages may follow one for memory's sake; only if its answer breaks that rule, or a
number of stages is asked for, once more with the number of stages as a dimension.
"""

from __future__ import annotations

import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import SlicingProblem, StageChoice

FloatArray = NDArray[np.float64]
_Answer = tuple[float, tuple[StageChoice, ...]]


@final
class BoundedSearch:
    """Solves the problem for any bound; `bounds` are those that make a difference, ascending."""

    def __init__(self, problem: SlicingProblem) -> None:
        self._problem = problem
        costs = problem.costs_s
        num_layers, _, num_submeshes, num_configs = costs.shape
        choices = num_submeshes * num_configs
        self._num_configs = num_configs
        self._costs = costs.reshape(num_layers, num_layers, choices).copy()
        self._room = problem.room.reshape(num_layers, num_layers, choices)
        self._costs[self._room < 0] = np.inf
        self._costs[np.tril_indices(num_layers, -1)] = np.inf
        sizes = np.repeat(problem.submesh_sizes, num_configs)
        self._costs[:, :, sizes > problem.num_devices] = np.inf
        # Only the devices that some submesh has matter: choices of one size compete with each other.
        self._sizes = [int(size) for size in np.unique(sizes[sizes <= problem.num_devices])]
        self._of_size = [np.flatnonzero(sizes == size) for size in self._sizes]
        once = problem.once_s.reshape(num_layers, num_layers, choices)
        self._weights = self._costs + once
        if problem.objective == "inference":
            self._weights = np.ones_like(self._costs)
        elif problem.objective == "work":
            self._weights = problem.num_micro_batches * self._costs + once
        self._limited = bool((self._room[np.isfinite(self._costs)] < num_layers - 1).any())

    @property
    def bounds(self) -> FloatArray:
        """The different finite costs, ascending."""
        return np.unique(self._costs[np.isfinite(self._costs)])

    def solve(self, bound: float) -> _Answer:
        """The least sum of stage weights (infinite if there is none) and the stages that have it."""
        if self._problem.num_stages is None:
            least, stages = self._unlimited(bound)
            if not stages or not self._limited or math.isfinite(self._problem.total_s(stages)):
                return least, stages
        return self._counted(bound)

    def _cheapest(self, bound: float, successors: int) -> tuple[FloatArray, NDArray[np.int64]]:
        """For each size, first and last layer, the least weight of a choice and which; shape (sizes, L, L)."""
        allowed = (self._costs <= bound) & (self._room >= successors)
        weights = np.where(allowed, self._weights, np.inf)
        picked = [ids[weights[:, :, ids].argmin(axis=2)] for ids in self._of_size]
        least = [np.take_along_axis(weights, which[:, :, None], axis=2)[:, :, 0] for which in picked]
        return np.array(least), np.array(picked)

    def _unlimited(self, bound: float) -> _Answer:
        """By (first layer, devices left): with the room for successors taken for granted beyond none."""
        num_layers, devices = self._problem.num_layers, self._problem.num_devices
        least, which = self._cheapest(bound, 0)
        rest = np.full((num_layers + 1, devices + 1), np.inf)
        rest[num_layers, 0] = 0.0
        taken = np.full((num_layers + 1, devices + 1, 2), -1, dtype=np.int64)
        for first in range(num_layers - 1, -1, -1):
            for n, size in enumerate(self._sizes):
                _relax(rest[first], taken[first], rest[first + 1 :], least[n, first, first:], n, size)
        used = self._used(rest[0])
        stages: list[StageChoice] = []
        first, left = 0, used
        while first < num_layers and math.isfinite(rest[0, used]):
            n, length = (int(x) for x in taken[first, left])
            stages.append(self._stage(first, first + length, int(which[n, first, first + length])))
            first, left = first + length + 1, left - self._sizes[n]
        return float(rest[0, used]), tuple(stages)

    def _counted(self, bound: float) -> _Answer:
        """By (stages from here on, first layer, devices left)."""
        num_layers, devices = self._problem.num_layers, self._problem.num_devices
        most = min(num_layers, devices // min(self._sizes), self._problem.num_stages or num_layers)
        rest = np.full((most + 1, num_layers + 1, devices + 1), np.inf)
        rest[0, num_layers, 0] = 0.0
        taken = np.full((most + 1, num_layers + 1, devices + 1, 2), -1, dtype=np.int64)
        which = []
        sizes = list(enumerate(self._sizes))
        for count in range(1, most + 1):
            least, picked = self._cheapest(bound, count - 1)
            which.append(picked)
            for first in range(num_layers - count, -1, -1):
                after = rest[count - 1, first + 1 :]
                for n, size in sizes:
                    _relax(rest[count, first], taken[count, first], after, least[n, first, first:], n, size)
        used = [self._used(rest[count, 0]) for count in range(most + 1)]
        counts = range(1, most + 1) if self._problem.num_stages is None else [self._problem.num_stages]
        totals = [float(rest[count, 0, used[count]]) if count <= most else math.inf for count in counts]
        count = counts[int(np.argmin(totals))] if totals else 0
        if not totals or math.isinf(min(totals)):
            return math.inf, ()
        stages: list[StageChoice] = []
        first, left, total = 0, used[count], min(totals)
        while count:
            n, length = (int(x) for x in taken[count, first, left])
            last = first + length
            stages.append(self._stage(first, last, int(which[count - 1][n, first, last])))
            first, left, count = first + length + 1, left - self._sizes[n], count - 1
        return total, tuple(stages)

    def _used(self, sums: FloatArray) -> int:
        """How many devices the whole pipeline takes."""
        return self._problem.num_devices if self._problem.devices == "exactly" else int(sums.argmin())

    def _stage(self, first: int, last: int, choice: int) -> StageChoice:
        return StageChoice(first, last, *divmod(choice, self._num_configs))


def _relax(
    best: FloatArray, taken: NDArray[np.int64], after: FloatArray, weights: FloatArray, kind: int, size: int
) -> None:
    """Betters `best` (by devices) with a first stage of any length on `size` devices, then `after` (by length)."""
    usable = np.flatnonzero(np.isfinite(weights))
    if not len(usable):
        return
    sums = weights[usable, None] + after[usable, : after.shape[1] - size]
    pick = sums.argmin(axis=0)
    least = sums[pick, np.arange(sums.shape[1])]
    better = least < best[size:]
    best[size:][better] = least[better]
    taken[size:][better] = np.stack([np.full(pick.shape, kind), usable[pick]], axis=1)[better]
