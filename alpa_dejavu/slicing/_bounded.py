"""The least sum of stage weights when no stage costs more than a bound.

First what no sum is below, by a price on each device; then by dynamic programming, over the stages that this leaves.
How many stages may follow one for memory's sake is left aside until a slicing breaks that rule.
"""

from __future__ import annotations

import functools
import math
from typing import final

import numpy as np

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing._branch import Answer
from alpa_dejavu.slicing._corridor import Corridor
from alpa_dejavu.slicing._graph import Graph, by_count
from alpa_dejavu.slicing._priced import affordable, best_price, may_use
from alpa_dejavu.slicing._stages import FloatArray, IntArray, stages_of
from alpa_dejavu.slicing._table import fits, least_sum

LITTLE = 10_000_000
"""So many sums are made in less time than prices take."""


@final
class BoundedSearch:
    """Answers for any bound; `bounds` are those that make a difference, ascending; `is_little` if prices don't pay."""

    def __init__(self, problem: SlicingProblem) -> None:
        self._stages = stages = stages_of(problem)
        self._num_stages, self._exactly = problem.num_stages, problem.devices == "exactly"
        self._num_devices, left_over = divmod(problem.num_devices, stages.unit)
        self.bounds: FloatArray = np.zeros(0) if left_over and self._exactly else np.unique(stages.cost_s)
        num_layers = problem.num_layers
        self._graph = Graph(
            layers=np.arange(num_layers + 1),
            num_layers=num_layers,
            tail=stages.first,
            head=stages.last + 1,
            size=stages.size,
            weight=stages.weight,
            stage=np.arange(len(stages.first)),
        )
        self._whole = Corridor.whole(self._graph, self._num_devices, self._exactly)
        # Whether the graph has to have numbers of stages in its nodes.
        self._counted = problem.num_stages is not None
        sums = len(self._graph) * (self._num_devices + 1)
        self.is_little = sums * (num_layers if self._counted or stages.limited else 1) <= LITTLE
        self._prices: dict[float, float] = {}
        self._price, self._counted_price = 0.0, 0.0

    def relaxed(self, bound: float, enough: float = math.inf, below: float = -math.inf) -> float:
        """What no sum within the bound is below, as far as prices tell: up to about `enough`.

        If memory has been in the way, it counts here too, as far as sums below `below` go.
        """
        graph = self._within(bound)
        least, price = best_price(graph, self._num_devices, self._exactly, self._price, enough)
        self._price = self._prices[bound] = price
        if self._counted and least < min(below, enough):
            _, graph = affordable(graph, self._num_devices, price, below)
            counted = self._by_count(graph)
            least = least if counted is None else max(least, self._counted_bound(counted, below))
        return least

    def solve(self, bound: float, below: float) -> Answer:
        """The least sum within the bound and its slicing, if it is below `below`; if not, what no sum is below.

        That is less than `below` only where memory counts and a graph or a table would be too large.
        """
        graph, least = self._within(bound), -math.inf
        if not self.is_little:
            if bound not in self._prices:
                self.relaxed(bound, below)
            least, graph = affordable(graph, self._num_devices, self._prices[bound], below)
        if least >= below:
            return least, ()
        if not self._counted:
            corridor = self._narrowed(self._whole.of(graph), self._prices.get(bound, 0.0), below)
            value, arcs = least_sum(corridor)
            if value >= below or self._suits(corridor.graph, arcs):
                return self._answer(corridor.graph, value, arcs, below)
            self._counted = not self.is_little
        return self._solve_counted(graph, least, below)

    def _solve_counted(self, graph: Graph, least: float, below: float) -> Answer:
        """The same in the graph that is left within a bound, where memory counts."""
        counted = self._by_count(graph)
        if counted is None:
            return least, ()
        if not self.is_little:
            least = max(least, self._counted_bound(counted, below))
            _, counted = affordable(counted, self._num_devices, self._counted_price, below)
        if least >= below:
            return least, ()
        corridor = self._narrowed(Corridor.whole(counted, self._num_devices, self._exactly), self._counted_price, below)
        if not fits(corridor):
            return least, ()
        value, arcs = least_sum(corridor)
        return self._answer(corridor.graph, value, arcs, below)

    @functools.cached_property
    def possible(self) -> bool:
        """Whether there may be a slicing: its devices are between the fewest and the most that are taken."""
        limited = self._stages.limited or self._num_stages is not None
        graph = self._by_count(self._graph) if limited else self._graph
        return graph is None or may_use(graph, self._num_devices, self._exactly)

    def _within(self, bound: float) -> Graph:
        return self._graph if bound >= self.bounds[-1] else self._graph.of(self._stages.cost_s <= bound)

    def _by_count(self, graph: Graph) -> Graph | None:
        stages = self._stages
        return by_count(graph, stages.covered[graph.stage], stages.room[graph.stage], self._num_stages)

    def _counted_bound(self, graph: Graph, below: float) -> float:
        """What no sum in a graph with numbers of stages is below, up to `below`: others may have been left out."""
        least, price = best_price(graph, self._num_devices, self._exactly, self._counted_price, below)
        self._counted_price = price
        return min(least, below)

    def _narrowed(self, whole: Corridor, price: float, below: float) -> Corridor:
        """Where sums below `below` may be, as far as it pays to know."""
        return whole.narrowed(price, below) if len(whole.graph) * (self._num_devices + 1) > LITTLE else whole

    def _suits(self, graph: Graph, arcs: IntArray) -> bool:
        """Whether memory has room for as many stages as follow each."""
        room = self._stages.room
        return not self._stages.limited or bool((room[graph.stage[arcs]] >= np.arange(len(arcs))[::-1]).all())

    def _answer(self, graph: Graph, least: float, arcs: IntArray, below: float) -> Answer:
        if least >= below:
            return below, ()
        return least, tuple(self._stages.chosen(stage) for stage in graph.stage[arcs].tolist())
