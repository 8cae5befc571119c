"""The least sum of stage weights when no stage costs more than a bound.

First a lower bound on all sums is found, by a price on each device; then the least sum, by dynamic programming, over
the stages that this leaves. How many stages may follow one for memory's sake, and from what stage it takes in, is left
aside until a slicing breaks the former rule or pays more for the latter: then it is looked for in a graph that has
these details in its nodes.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing._base import Effort
from alpa_dejavu.slicing._branch import BoundedAnswer
from alpa_dejavu.slicing._graph import StageGraph, by_count, by_group
from alpa_dejavu.slicing._stages import FloatArray, IntArray, stages_of
from alpa_dejavu.slicing._table import Corridor, affordable, best_price, fits, least_sum, may_use


class Details(NamedTuple):
    """Two flags: what the nodes of a graph, in which paths are slicings, tell apart besides the layer.

    `followers` is how many stages there are from the layer on, since memory limits that, or since a number of stages is
    asked for; `before` the group of submeshes that the stage before is on, for the transfer from it.
    """

    followers: bool = False
    before: bool = False


@final
class BoundedSearch:
    """A search for the slicing with the least sum of stage weights when no stage may cost more than a bound.

    A stage's weight is what an objective sums over stages. `bounds` has the different costs of stages, ascending;
    `is_little` says that the problem is so small that a table over numbers of devices is faster than prices of devices.
    """

    def __init__(self, problem: SlicingProblem, effort: Effort) -> None:
        self._effort = effort
        self._stages = stages = stages_of(problem)
        self._num_stages, self._exactly = problem.num_stages, problem.devices == "exactly"
        self._num_devices, left_over = divmod(problem.num_devices, stages.unit)
        groups = range(stages.transfers.seconds.shape[1])
        costs = [stages.after(stages.unlike, np.full_like(stages.unlike, group)) for group in groups]
        self.bounds: FloatArray = np.zeros(0) if left_over and self._exactly else np.unique(np.concatenate(costs))
        num_layers = problem.num_layers
        self._graph = StageGraph(
            layers=np.arange(num_layers + 1),
            num_layers=num_layers,
            tail=stages.first,
            head=stages.last + 1,
            size=stages.size,
            weight=stages.weight,
            stage=np.arange(len(stages.first)),
        )
        self._whole = Corridor.whole(self._graph, self._num_devices, self._exactly)
        self._details = Details(followers=problem.num_stages is not None)
        sums = len(self._graph) * (self._num_devices + 1)
        self.is_little = sums * (num_layers if any(self._details) or stages.limited else 1) <= effort.few_sums
        self._prices: dict[float, float] = {}
        self._price, self._detailed_price = 0.0, 0.0

    def relaxed(self, bound: float, enough: float = math.inf, below: float = -math.inf) -> float:
        """Returns a lower bound on the summed weights of slicings whose stages cost at most `bound`, by a price on each
        device; as good as prices find it, up to about `enough`.

        If memory limits or transfers made an earlier slicing invalid or dearer, they count, but only as far as sums
        below `below` go.
        """
        graph = self._within(bound)
        least, price = best_price(graph, self._num_devices, self._exactly, self._price, enough)
        self._price = self._prices[bound] = price
        if any(self._details) and least < min(below, enough):
            _, graph = affordable(graph, self._num_devices, price, below)
            detailed = self._detailed(graph, bound, self._details)
            least = least if detailed is None else max(least, self._detailed_bound(detailed, below))
        return least

    def solve(self, bound: float, below: float) -> BoundedAnswer:
        """Returns the least summed weight of slicings whose stages cost at most `bound`, with its slicing, if it is
        below `below`; if not, a lower bound and no slicing.

        The lower bound is less than `below` only where the search's graph or table would take too much memory.
        """
        graph, least = self._within(bound), -math.inf
        if not self.is_little:
            if bound not in self._prices:
                self.relaxed(bound, below)
            least, graph = affordable(graph, self._num_devices, self._prices[bound], below)
        if least >= below:
            return least, ()
        details = self._details
        if not any(details):
            corridor = self._narrowed(self._whole.of(graph), self._prices.get(bound, 0.0), below)
            value, arcs = least_sum(corridor)
            details = self._missed(corridor.graph, arcs)
            if value >= below or not any(details):
                return self._answer(corridor.graph, value, arcs, below)
        while True:
            if not self.is_little:
                self._details = details
            least, chosen, arcs = self._solve_detailed(graph, bound, least, below, details)
            if chosen is None or least >= below:
                return least, ()
            more = Details(*map(operator.or_, self._missed(chosen, arcs), details))
            if more == details:
                return self._answer(chosen, least, arcs, below)
            details = more

    def _solve_detailed(
        self, graph: StageGraph, bound: float, least: float, below: float, details: Details
    ) -> tuple[float, StageGraph | None, IntArray]:
        """Returns the least sum within a bound by a graph with details, or a lower bound; the graph and the arcs."""
        nothing = np.zeros(0, dtype=np.int64)
        detailed = self._detailed(graph, bound, details)
        if detailed is None:
            return least, None, nothing
        if not self.is_little:
            least = max(least, self._detailed_bound(detailed, below))
            _, detailed = affordable(detailed, self._num_devices, self._detailed_price, below)
        if least >= below:
            return least, None, nothing
        whole = Corridor.whole(detailed, self._num_devices, self._exactly)
        corridor = self._narrowed(whole, self._detailed_price, below)
        if not fits(corridor, self._effort.most_table_bytes):
            return least, None, nothing
        value, arcs = least_sum(corridor)
        return min(value, below), corridor.graph, arcs

    @functools.cached_property
    def possible(self) -> bool:
        """Returns whether slicings can take the cluster's devices at all."""
        limited = self._stages.limited or self._num_stages is not None
        graph = self._detailed(self._graph, math.inf, Details(followers=limited))
        return graph is None or may_use(graph, self._num_devices, self._exactly)

    def _within(self, bound: float) -> StageGraph:
        return self._graph if bound >= self.bounds[-1] else self._graph.of(self._stages.cost_s <= bound)

    def _detailed(self, graph: StageGraph, bound: float, details: Details) -> StageGraph | None:
        """Returns a graph of layers with some details in its nodes; None if that would be too large."""
        stages, detailed, most_arcs = self._stages, graph, self._effort.most_arcs
        if details.before:
            own = graph.stage

            def weights(which: IntArray, before: IntArray) -> tuple[NDArray[np.bool_], FloatArray]:
                costs = stages.after(own[which], before)
                more = stages.per_transfer * (costs - stages.cost_s[own[which]])
                return costs <= bound, graph.weight[which] + more

            grouped = by_group(graph, stages.transfers.group[stages.submeshes(own)], weights, most_arcs)
            if grouped is None:
                return None
            detailed = grouped
        if not details.followers:
            return detailed
        # What another stage of the same layers and devices covers, it covers after any stage: they take in alike.
        stage = detailed.stage
        return by_count(detailed, stages.covered[stage], stages.followers[stage], self._num_stages, most_arcs)

    def _detailed_bound(self, graph: StageGraph, below: float) -> float:
        """Returns a lower bound on all sums in a graph with details, at most `below`: it may lack dearer ways."""
        least, price = best_price(graph, self._num_devices, self._exactly, self._detailed_price, below)
        self._detailed_price = price
        return min(least, below)

    def _narrowed(self, whole: Corridor, price: float, below: float) -> Corridor:
        """Returns the corridor where sums below `below` may be, as far as it pays to know."""
        sums = len(whole.graph) * (self._num_devices + 1)
        return whole.narrowed(price, below) if sums > self._effort.few_sums else whole

    def _missed(self, graph: StageGraph, arcs: IntArray) -> Details:
        """Returns the details that a way ignores: memory for the stages that follow each, or transfers to each."""
        stages = self._stages
        own = graph.stage[arcs]
        sending = stages.transfers.group[stages.submeshes(own)]
        dearer = stages.after(own[1:], sending[:-1]) > stages.cost_s[own[1:]]
        full = stages.limited and bool((stages.followers[own] < np.arange(len(arcs))[::-1]).any())
        return Details(full, bool(dearer.any()))

    def _answer(self, graph: StageGraph, least: float, arcs: IntArray, below: float) -> BoundedAnswer:
        if least >= below:
            return below, ()
        return least, tuple(self._stages.chosen(stage) for stage in graph.stage[arcs].tolist())
