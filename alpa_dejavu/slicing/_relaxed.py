"""A lower bound on all slicings within a bound, by prices for the devices of each kind of host.

A slicing that takes what there is costs no less when each device that it takes is charged a price and the price of all
that there are is paid out. So the cheapest slicing at any prices, with any number of devices, is a lower bound; the
prices that make it largest are found by cutting planes: each cheapest slicing says what any prices can win at most,
and a linear program picks the next ones, not far from the best so far. Crossing counts as it is, as long as that is
little work.

References:
    Kelley, The Cutting-Plane Method for Solving Convex Programs, J. SIAM 8, 1960.
    Handler and Zang, A Dual Algorithm for the Constrained Shortest Path Problem, Networks 10, 1980.
"""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.slicing._base import Effort
from alpa_dejavu.slicing._choices import Choices, FloatArray, IntArray

TOLERANCE = 1e-4
"""Prices that can be better by no more than this fraction are good enough."""
ENTRIES = 300
"""So many entries of the relaxation's arrays are looked at in the time that a beginning of a slicing takes to make."""
HIGHEST = 100.0
"""All that there is of a resource isn't priced higher than at so many times the sum that is asked for: with prices much
higher than costs, costs are lost to rounding."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PricedBound:
    """A lower bound on the summed weights of slicings from prices of R resources, such as the devices of each kind of
    host.

    Sites (hosts that a stage may take) are of Q classes, and these of G groups with equal links to what follows.

    Attributes:
        value: the bound: no sum of weights is less.
        prices: shape (R,), the price of a unit of each resource.
        rest: shape (L, G), the least sum, prices included, of stages from layer l on after a stage of group g; the
            entries of row 0 are equal.
        then: shape (L, Q), the same after a stage of class q whose last layer is l, plus the price of that stage.
    """

    value: float
    prices: FloatArray
    rest: FloatArray
    then: FloatArray


@final
class Relaxation:
    """The Lagrangian relaxation of the slicing problem for one bound on stage costs: devices are priced, not counted.

    `work` counts entries of arrays that were looked at. Where arrays would have more than `most_entries`, each transfer
    counts as its cheapest one.
    """

    def __init__(self, choices: Choices, bound: float, most_entries: int = Effort.most_entries) -> None:
        self._choices = choices
        crossing = choices.crossing_s
        num_layers, num_groups, num_classes = crossing.shape
        coarse = num_groups * num_classes * num_layers**2 > most_entries
        self._entry, self._extra = crossing, choices.crossing_weights
        if coarse:
            self._entry = self._entry.min(axis=1, keepdims=True)
            self._extra = self._extra.min(axis=1, keepdims=True)
        self._group: IntArray = np.zeros_like(choices.group) if coarse else choices.group
        self._ends = np.arange(num_layers) + choices.reach(bound)
        # Nothing is before the first layer: there all groups are alike.
        groups = np.append(1, np.full(num_layers - 1, self._entry.shape[1]))
        self._behind: IntArray = np.cumsum(groups * (self._ends - np.arange(num_layers)) * num_classes)
        self._cheapest: FloatArray = np.empty(self._behind[-1])
        entry, extra = np.ascontiguousarray(self._entry), np.ascontiguousarray(self._extra)
        costs = choices.costs_s, choices.weights, entry, extra, choices.onward_s
        _cheapest(*costs, self._ends, bound, self._cheapest)
        self.work = 0

    def at(self, prices: FloatArray) -> PricedBound:
        """Returns the lower bound that the given prices of resources yield."""
        choices = self._choices
        self.work += len(self._cheapest)
        # Products and sums in their order, not a library's: a bound's last bits may decide which of equals is found.
        charged = (choices.uses * prices).sum(axis=1)
        rest = np.empty((choices.num_layers, self._entry.shape[1]))
        then = np.empty((choices.num_layers, len(charged)))
        _sum_up(self._cheapest, self._ends, self._group, charged, rest, then)
        if rest.shape[1] != choices.num_groups:
            rest = np.repeat(rest, choices.num_groups, axis=1)
        return PricedBound(float(rest[0, 0] - (prices * choices.available).sum()), prices, rest, then)

    def tightened(self, below: float, start: FloatArray, steps: int) -> PricedBound:
        """Returns the best bound that up to `steps` changes of the prices find, or the first not below `below`."""
        best = self.at(start)
        if steps == 0 or best.value >= below:
            return best
        unit_s = max(abs(best.value), below if math.isfinite(below) else 0.0)
        model = _SlicingProgram(self._choices, unit_s)
        width = 0.5 * max(below - best.value if math.isfinite(below) else 0.0, 0.1 * abs(best.value))
        latest, tolerance = best, TOLERANCE * abs(best.value)
        for _ in range(steps):
            if best.value >= below or math.isinf(latest.value):
                break
            model.add(latest, self._used(latest))
            prices, promised = model.best(best.prices, width)
            if promised - best.value <= tolerance:
                break
            latest = self.at(prices)
            width *= 2.0 if latest.value - best.value > 0.1 * (promised - best.value) else 0.7
            best = latest if latest.value > best.value else best
        return best

    def _used(self, at: PricedBound) -> FloatArray:
        """Returns how much the cheapest slicing at some prices takes of each resource."""
        choices = self._choices
        used = np.zeros(len(choices.available))
        layer, group = 0, 0
        while layer < choices.num_layers:
            after = at.then[layer : self._ends[layer]].reshape(-1)
            begin = (self._behind[layer - 1] if layer else 0) + group * len(after)
            row = self._cheapest[begin : begin + len(after)] + after
            length, of_class = divmod(int(row.argmin()), len(choices.group))
            used += choices.uses[of_class]
            layer, group = layer + length + 1, int(self._group[of_class])
        return used


@compiled("(f8[:, :, :, ::1], f8[:, :, :, ::1], f8[:, :, ::1], f8[:, :, ::1], f8[:, ::1], i8[::1], f8, f8[::1])")
def _cheapest(
    costs: FloatArray,
    weights: FloatArray,
    entry: FloatArray,
    extra: FloatArray,
    onward: FloatArray,
    ends: IntArray,
    bound: float,
    cheapest: FloatArray,
) -> None:
    """Sets the least weight of a stage by its first layer, the group before, its last layer below `ends`, and class."""
    num_layers, num_groups, num_classes = entry.shape
    n = 0
    for layer in range(num_layers):
        for group in range(num_groups if layer else 1):
            for last in range(layer, ends[layer]):
                for of_class in range(num_classes):
                    least, crossing = np.inf, entry[layer, group, of_class] + onward[last, of_class]
                    for way in range(costs.shape[3]):
                        if np.isinf(costs[layer, last, of_class, way]):  # the next ones are none either
                            break
                        fits = costs[layer, last, of_class, way] + crossing <= bound
                        own = weights[layer, last, of_class, way] if fits else np.inf
                        least = own if own < least else least
                    cheapest[n] = least + extra[layer, group, of_class]
                    n += 1


@compiled("(f8[::1], i8[::1], i8[::1], f8[::1], f8[:, ::1], f8[:, ::1])")
def _sum_up(
    cheapest: FloatArray, ends: IntArray, group: IntArray, charged: FloatArray, rest: FloatArray, then: FloatArray
) -> None:
    """Sets `PricedBound.rest` and `PricedBound.then`, from the last layer on."""
    num_layers, num_groups = rest.shape
    least, begin = np.empty(len(charged)), len(cheapest)
    then[-1] = charged
    for layer in range(num_layers - 1, -1, -1):
        for before in range((num_groups if layer else 1) - 1, -1, -1):
            begin -= (ends[layer] - layer) * len(charged)
            least[:] = np.inf
            for last in range(layer, ends[layer]):
                own = cheapest[begin + (last - layer) * len(charged) : begin + (last - layer + 1) * len(charged)]
                after = then[last]
                for of_class in range(len(least)):
                    total = own[of_class] + after[of_class]
                    least[of_class] = total if total < least[of_class] else least[of_class]
            rest[layer, before] = least.min()
        if layer:
            for of_class in range(len(charged)):
                then[layer - 1, of_class] = charged[of_class] + rest[layer, group[of_class]]
    rest[0] = rest[0, 0]


@final
class _SlicingProgram:
    """A linear program of the slicings seen so far: they limit the bound that any prices can give."""

    def __init__(self, choices: Choices, unit_s: float) -> None:
        # Importing this takes longer than most searches. Prices are of all of a resource, in units of `unit_s`.
        import highspy

        self._choices, self._unit_s = choices, unit_s or 1.0
        self._scale = np.maximum(choices.available, 1).astype(float)
        self._lowest = np.where(choices.exact, -HIGHEST, 0.0)
        self._places = np.arange(len(self._scale) + 1, dtype=np.int32)
        self._solver = highspy.Highs()
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        for _ in self._scale:
            self._solver.addVar(0.0, 0.0)
        self._solver.addVar(-highspy.kHighsInf, highspy.kHighsInf)
        self._solver.changeColCost(len(self._scale), -1.0)
        self._no_limit, self._optimal = highspy.kHighsInf, highspy.HighsModelStatus.kOptimal

    def add(self, at: PricedBound, used: FloatArray) -> None:
        """Adds a cutting plane from the cheapest slicing at some prices, which uses so much of each resource."""
        over = used - self._choices.available
        row = np.append(-over / self._scale, 1.0)
        limit = (at.value - float((over * at.prices).sum())) / self._unit_s
        self._solver.addRow(-self._no_limit, limit, len(row), self._places, row)

    def best(self, around: FloatArray, width: float) -> tuple[FloatArray, float]:
        """Returns the prices at most `width` from `around` that promise the highest lower bound, and that bound."""
        middle, width = around * self._scale / self._unit_s, width / self._unit_s
        low, high = np.clip([middle - width, middle + width], self._lowest, HIGHEST)
        for place, limits in enumerate(zip(low, high, strict=True)):
            self._solver.changeColBounds(place, *limits)
        self._solver.run()
        if self._solver.getModelStatus() != self._optimal:
            return around, -math.inf
        *prices, promised = self._solver.getSolution().col_value
        return np.clip(prices, low, high) * self._unit_s / self._scale, promised * self._unit_s
