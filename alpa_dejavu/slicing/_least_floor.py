"""The least floor of a step that any plan has: a dynamic program within a threshold, and a search for the threshold."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Sites, SlicingProblem
from alpa_dejavu.slicing._choices import Choices, FloatArray, alike_sites

CLOSE = 1e-6
"""The threshold is found to this fraction."""
WEIGHTS = (4, 2, 1)
"""The slowest kind's weight, which says how fine the others' are; the first one is taken that isn't too much work."""
_ROUNDING = 1e-12


@final
@dataclasses.dataclass(frozen=True)
class Occupied:
    """A rule for a lower bound on how long a stage, or the link to it, is busy from when its first micro-batch is sent
    to it.

    `blocking` says whether a transfer to a stage holds it up, and `ahead_only` whether there is only a forward pass, as
    in inference, and no update.
    """

    num_micro_batches: int
    blocking: bool
    ahead_only: bool

    def seconds(self, cost_s: FloatArray | float, crossed_s: FloatArray | float) -> FloatArray:
        """Returns for how long a stage and the link to it are busy with all of the step's micro-batches; where they can
        work at the same time, the one that takes longer counts.

        `cost_s` and `crossed_s` are the stage's and the link's seconds for one micro-batch, forward and backward
        together.
        """
        size = self.num_micro_batches
        if self.blocking:
            return np.asarray(size * (np.asarray(cost_s) + crossed_s))
        ways = size if self.ahead_only else (size + 1) / 2
        return np.maximum(crossed_s + size * np.asarray(cost_s), cost_s + ways * np.asarray(crossed_s))


@final
class LeastFloor:
    """A search for the least lower bound on a simulated step over all plans of a problem.

    It is a dynamic program over states of (layer, group of submeshes of the stage before, devices in use), which keeps
    the least sum of the stages so far.

    Args:
        problem: the slicing problem.
        occupied: the rule for how long a stage is busy at least.
        most_work: the most sums for one threshold; what tells more states apart is left out.
        most_places: the most combinations of devices in use by kind of host.
    """

    def __init__(self, problem: SlicingProblem, occupied: Occupied, most_work: int, most_places: int) -> None:
        self._problem, self._occupied = problem, occupied
        plain = dataclasses.replace(problem, num_stages=None, objective="training")
        choices = Choices(*_with_places(plain, most_work, most_places))
        self._choices, self._group, self._crossing = choices, choices.group, choices.crossing_s
        self._usable = [int(q) for q in np.flatnonzero((choices.uses <= choices.available).all(axis=1))]
        self._places(choices)
        num_layers, num_groups, num_classes = self._crossing.shape
        work = num_layers**2 / 2 * num_classes * self._num_states
        if num_groups * work > most_work:
            self._group = np.zeros_like(self._group)
            self._crossing = self._crossing.min(axis=1, keepdims=True)
            num_groups = 1
        smallest = int(problem.submesh_sizes.min())
        self._most = min(num_layers, problem.num_devices // smallest, problem.num_stages or num_layers)
        left = np.arange(num_layers - 1, -1, -1)[None, :, None, None]
        limited = bool((np.isfinite(choices.costs_s) & (choices.followers < left)).any())
        counts = limited or problem.num_stages is not None
        self._counted = counts and num_groups * work * self._most <= most_work
        self._once = np.zeros_like(choices.costs_s[0])
        if not occupied.ahead_only:
            offered = np.isfinite(choices.costs_s[0])
            np.subtract(choices.weights[0], choices.costs_s[0], out=self._once, where=offered)
        self._cheapest: dict[int, FloatArray] = {}

    def find(self) -> float:
        """Returns that bound in seconds, or a little less; infinite if there is no plan."""
        if self._most < (self._problem.num_stages or 1):
            return math.inf
        low = self._least_sum(math.inf)
        if math.isinf(low):
            return math.inf
        high = low * self._problem.num_micro_batches
        while high > low * (1 + CLOSE):
            middle = math.sqrt(low) * math.sqrt(high)
            if math.isfinite(self._least_sum(middle)):
                high = middle
            else:
                low = middle
        return low * (1 - _ROUNDING)

    def _places(self, choices: Choices) -> None:
        """Sets which states of use a stage of each class may come to, and which it leads to."""
        sizes = choices.available + 1
        self._num_states = math.prod(sizes.tolist())
        strides = np.append(np.cumprod(sizes[::-1])[-2::-1], 1)
        in_use = np.indices(sizes.tolist()).reshape(len(sizes), -1)
        self._full = int(strides @ choices.available)
        self._before: dict[int, NDArray[np.int64]] = {}
        self._after: dict[int, NDArray[np.int64]] = {}
        for q in self._usable:
            fits = (in_use + choices.uses[q][:, None] <= choices.available[:, None]).all(axis=0)
            self._before[q] = np.flatnonzero(fits)
            self._after[q] = self._before[q] + int(strides @ choices.uses[q])

    def _least_sum(self, threshold: float) -> float:
        """Returns the least sum of stages, and of what crosses, of all plans within a threshold, or infinity."""
        choices = self._choices
        ends = np.arange(choices.num_layers) + choices.reach(
            threshold / self._problem.num_micro_batches * (1 + _ROUNDING)
        )
        nothing = np.full((choices.num_layers + 1, self._crossing.shape[1], self._num_states), np.inf)
        heads = nothing.copy()
        if not self._counted:
            self._begin(heads, threshold, 0)
            self._go_on(heads, heads, threshold, ends, 0)
        for left in range(self._most, 0, -1) if self._counted else ():
            after = nothing.copy()
            if self._problem.num_stages in (None, left):
                self._begin(after, threshold, left - 1)
            self._go_on(heads, after, threshold, ends, left - 1)
            heads = after
        whole = heads[-1] if self._problem.devices == "at most" else heads[-1, :, self._full]
        return float(whole.min())

    def _begin(self, heads: FloatArray, threshold: float, successors: int) -> None:
        """Adds first stages that so many others may follow at least; they alone count what comes once a step."""
        choices = self._choices
        costs = np.where(choices.followers[0] >= successors, choices.costs_s[0], np.inf)
        fits = self._occupied.seconds(costs, 0.0) + self._once <= threshold
        least = np.where(fits, costs + self._once, np.inf).min(axis=2)
        for q in self._usable:
            used = self._after[q][0]
            place = heads[1:, self._group[q], used]
            np.minimum(place, least[:, q], out=place)

    def _go_on(
        self, heads: FloatArray, after: FloatArray, threshold: float, ends: NDArray[np.int64], successors: int
    ) -> None:
        """Adds next stages that so many others may follow at least; by layers, so `after` may be `heads` itself."""
        costs = self._least_costs(successors)
        for layer in range(1, len(costs)):
            if np.isinf(heads[layer]).all():
                continue
            lasts = slice(layer, int(ends[layer]))
            for q in self._usable:
                cost, crossed = costs[layer, lasts, q][None, :], self._crossing[layer, :, q][:, None]
                if np.isinf(cost).all():
                    continue
                head = heads[layer][:, None, self._before[q]]
                sums = head + (cost + crossed)[:, :, None]
                sums[head + self._occupied.seconds(cost, crossed)[:, :, None] > threshold] = np.inf
                place = after[layer + 1 : lasts.stop + 1, self._group[q]]
                to = self._after[q]
                place[:, to] = np.minimum(place[:, to], sums.min(axis=0))

    def _least_costs(self, successors: int) -> FloatArray:
        """Returns the least cost of each first layer, last layer and class with so much room; shape (L, L, Q)."""
        if successors not in self._cheapest:
            allowed = self._choices.followers >= successors
            self._cheapest[successors] = np.where(allowed, self._choices.costs_s, np.inf).min(axis=3)
        return self._cheapest[successors]


def _with_places(problem: SlicingProblem, most_work: int, most_places: int) -> tuple[SlicingProblem, Sites]:
    """Returns a problem and sites by which its devices are counted; without sites of its own, they are all of one kind.

    Devices are counted by the kind of host. Where that is too much, only a weighted sum over the kinds is counted: with
    any weights, stages don't take more than there is. What does more work has more weight, so that fast devices aren't
    had for the number of slow ones.
    """
    sizes, sites = problem.submesh_sizes, problem.sites
    if sites is None:
        return problem, alike_sites(problem)
    sites = sites.without_capacity()  # a bound holds without
    if math.prod((sites.available + 1).tolist()) <= most_places:
        return problem, sites
    rates = _rates(problem, sites)
    for finely in WEIGHTS:
        weights = np.maximum(np.rint(finely * rates), 1).astype(np.int64)
        weights //= np.gcd.reduce(weights)
        total = int(weights @ sites.available)
        if total * len(sizes) * problem.num_layers**2 / 2 <= most_work:
            break
    else:
        weights = np.ones_like(weights)
    uses, available = sites.uses @ weights[:, None], np.array([weights @ sites.available])
    weighted = dataclasses.replace(sites, uses=uses, available=available)
    changes = {"submesh_sizes": uses[:, 0], "num_devices": int(available[0]), "sites": weighted}
    return dataclasses.replace(problem, **changes), weighted


def _rates(problem: SlicingProblem, sites: Sites) -> FloatArray:
    """Returns the speed of each kind's devices, next to the slowest kind's; 1 where that can't be told. Shape (K,)."""
    seconds = np.asarray(problem.costs_s).min(axis=3) * problem.submesh_sizes
    offered = np.isfinite(seconds) & (seconds > 0)
    fastest = np.where(offered, seconds, np.inf).min(axis=2, keepdims=True)
    shares = np.ones(seconds.shape)
    np.divide(fastest, seconds, out=shares, where=offered)
    columns = [shares[:, :, s][offered[:, :, s]] for s in range(len(sites.uses))]
    of_submesh = np.array([np.median(column) if column.size else 0.0 for column in columns])
    alone = (sites.uses > 0).sum(axis=1) == 1
    rates = np.array([of_submesh[alone & (uses > 0)].max(initial=0.0) for uses in sites.uses.T])
    is_rated = rates > 0
    return np.where(is_rated, rates / rates[is_rated].min(initial=1.0), 1.0)
