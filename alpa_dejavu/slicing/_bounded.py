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
        """For each first and last layer and size, the least weight of a choice and which; shape (L, L, sizes)."""
        allowed = (self._costs <= bound) & (self._room >= successors)
        weights = np.where(allowed, self._weights, np.inf)
        picked = [ids[weights[:, :, ids].argmin(axis=2)] for ids in self._of_size]
        least = [np.take_along_axis(weights, which[:, :, None], axis=2)[:, :, 0] for which in picked]
        return np.stack(least, axis=-1), np.stack(picked, axis=-1)

    def _unlimited(self, bound: float) -> _Answer:
        """By (first layer, devices left): with the room for successors taken for granted beyond none."""
        num_layers, devices = self._problem.num_layers, self._problem.num_devices
        least, which = self._cheapest(bound, 0)
        rest = np.full((num_layers + 1, devices + 1), np.inf)
        rest[num_layers, 0] = 0.0
        taken = np.full((num_layers + 1, devices + 1, 2), -1, dtype=np.int64)
        after = np.full((num_layers, len(self._sizes), devices + 1), np.inf)
        for first in range(num_layers - 1, -1, -1):
            self._shift(rest[first + 1], after[first])
            _relax(rest[first], taken[first], after[first:], least[first, first:])
        used = self._used(rest[0])
        stages: list[StageChoice] = []
        first, left = 0, used
        while first < num_layers and math.isfinite(rest[0, used]):
            length, n = (int(x) for x in taken[first, left])
            stages.append(self._stage(first, first + length, int(which[first, first + length, n])))
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
        for count in range(1, most + 1):
            least, picked = self._cheapest(bound, count - 1)
            which.append(picked)
            after = np.full((num_layers, len(self._sizes), devices + 1), np.inf)
            self._shift(rest[count - 1, 1:], after)
            for first in range(num_layers - count, -1, -1):
                _relax(rest[count, first], taken[count, first], after[first:], least[first, first:])
        used = [self._used(rest[count, 0]) for count in range(most + 1)]
        counts = range(1, most + 1) if self._problem.num_stages is None else [self._problem.num_stages]
        totals = [float(rest[count, 0, used[count]]) if count <= most else math.inf for count in counts]
        count = counts[int(np.argmin(totals))] if totals else 0
        if not totals or math.isinf(min(totals)):
            return math.inf, ()
        stages: list[StageChoice] = []
        first, left, total = 0, used[count], min(totals)
        while count:
            length, n = (int(x) for x in taken[count, first, left])
            last = first + length
            stages.append(self._stage(first, last, int(which[count - 1][first, last, n])))
            first, left, count = first + length + 1, left - self._sizes[n], count - 1
        return total, tuple(stages)

    def _shift(self, sums: FloatArray, after: FloatArray) -> None:
        """What comes after a stage of each size, by the devices left before it: (..., sizes, devices + 1)."""
        for n, size in enumerate(self._sizes):
            after[..., n, size:] = sums[..., : sums.shape[-1] - size]

    def _used(self, sums: FloatArray) -> int:
        """How many devices the whole pipeline takes."""
        return self._problem.num_devices if self._problem.devices == "exactly" else int(sums.argmin())

    def _stage(self, first: int, last: int, choice: int) -> StageChoice:
        return StageChoice(first, last, *divmod(choice, self._num_configs))


def _relax(best: FloatArray, taken: NDArray[np.int64], after: FloatArray, weights: FloatArray) -> None:
    """Sets `best` (by devices) to a first stage of any length and size, then what comes after it.

    `weights` is (lengths, sizes), `after` (lengths, sizes, devices + 1); `taken` gets the place of the first stage.
    """
    flat = weights.ravel()
    usable = np.flatnonzero(flat < np.inf)
    if not len(usable):
        return
    sums = after.reshape(len(flat), -1)[usable]
    sums += flat[usable, None]
    pick = sums.argmin(axis=0)
    best[:] = sums[pick, np.arange(len(best))]
    taken[:, 0], taken[:, 1] = np.divmod(usable[pick], weights.shape[1])
