"""The best plans that can be put together from stages that were drawn, with choices that take what there is.

They are for given bounds on the largest stage, over which a second costs B - 1: so what is put together costs no more
than it is said to, whatever the bound.
"""

from __future__ import annotations

import functools
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation.put_stages import put_before

__all__ = ["recombined"]

MOST_STATES = 160_000_000
"""Plans aren't put together where there would be more combinations of used devices, stages, choices and bounds."""
STEEP, FAR = 8.0, 1.3
"""If the bound's steepness is at least the first, stages that cost so many times a bound aren't looked at."""


def recombined(lattice: Lattice, segments: IntArray, bounds: FloatArray) -> Batch | None:
    """Returns for each bound on the largest stage the cheapest plan that can be put together from given segments of
    layers, each as a stage, with any submeshes and configs.

    Memory limits how many stages may follow one, which is only checked against the cheapest continuation: a dearer one
    with fewer stages isn't kept.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        segments: shape (E, 2), first and last layer, each pair once.
        bounds: shape (B,), bounds on the largest stage, in units of time; being over one is penalised.

    Returns:
        A plan for each bound for which there is one; None if there are too many combinations to look at.
    """
    size = lattice.problem.num_layers
    states = _States(lattice)
    if states.count * len(bounds) * len(segments) * len(states.uses) > MOST_STATES:
        return None
    table = _Suffixes(lattice, bounds, states)
    for layer in range(size - 1, -1, -1):
        lasts = segments[segments[:, 0] == layer, 1]
        if len(lasts):
            table.begin(layer, lasts)
    first, goal = table.best[:, 0], states.goal()
    state = goal[first[:, goal].argmin(axis=1)]
    feasible = np.isfinite(first[np.arange(len(bounds)), state])
    return _traced(lattice, table.taken, state, states.back).take(feasible)


@final
class _Suffixes:
    """The best ends of plans by bound, first layer and devices used: the least sum, the number of stages, the first."""

    def __init__(self, lattice: Lattice, bounds: FloatArray, states: _States) -> None:
        self._lattice, self._bounds, self._back, self._holds = lattice, bounds, states.back, states.holds()
        size = lattice.problem.num_layers
        self.best = np.full((len(bounds), size + 1, states.count), np.inf, dtype=np.float32)
        self.best[:, size, 0] = 0.0
        self._count = np.zeros(self.best.shape, dtype=np.int16)
        self.taken = np.full((3, len(bounds), size, states.count), -1, dtype=np.int16)

    def begin(self, layer: int, lasts: IntArray) -> None:
        """Adds to the table the best plans for the layers from `layer` on, whose first stage ends with one of the
        layers `lasts`.
        """
        lattice = self._lattice
        ways = self._ways(layer, lasts)
        cost = _theta(lattice, np.full_like(lasts, layer), lasts, np.zeros_like(lasts), self._bounds[:, None])
        cost = np.take_along_axis(cost, np.broadcast_to(ways, (len(cost), *ways.shape)), axis=-1)
        room = np.take_along_axis(lattice.choices.room[layer, lasts], ways, axis=-1)
        # What is far over a bound is dearer than any other bound's plan.
        cost = np.where(self._far(layer, lasts, ways) | self._useless(layer, lasts, ways, room), np.inf, cost)
        most = self._count[:, lasts + 1].max()
        # Where memory is in nobody's way, a dearer way is of no use.
        tight = (np.isfinite(cost).any(axis=0) & (room[..., :1] < most)).any(axis=0)
        wanted = tight | (np.arange(ways.shape[2]) == 0) | (lattice.problem.per_step_s is not None)
        put_before(
            layer, lasts, cost.astype(np.float32), room, ways, wanted, self._holds, self._back,
            self.best, self._count, self.taken,
        )  # fmt: skip

    def _ways(self, layer: int, lasts: IntArray) -> IntArray:
        """Returns the ways of each class to try, the cheapest first; (J, Q, W). All are tried if memory matters."""
        if not self._lattice.limited:
            return self._lattice.way[layer, lasts]
        return self._lattice.choices.costs_s[layer, lasts].argsort(axis=-1, kind="stable")

    def _useless(self, layer: int, lasts: IntArray, ways: IntArray, room: IntArray) -> Any:
        """Returns where a cheaper way has as much room, and doesn't weigh more; (J, Q, W)."""
        weights = np.take_along_axis(self._lattice.choices.weights[layer, lasts], ways, axis=-1)
        return room <= _covered_room(weights, room)

    def _far(self, layer: int, lasts: IntArray, ways: IntArray) -> Any:
        """Returns where a stage is so far over a bound that a plan within another bound is better; (B, J, Q, W)."""
        lattice = self._lattice
        if lattice.arrays.steepness < STEEP:
            return np.zeros((len(self._bounds), *ways.shape), dtype=np.bool_)
        costs = np.take_along_axis(lattice.choices.costs_s[layer, lasts], ways, axis=-1) / lattice.unit_s
        return costs > self._bounds[:, None, None, None] * FAR


def _traced(lattice: Lattice, taken: Any, state: IntArray, offsets: IntArray) -> Batch:
    """Returns the plans, traced from their first layer on."""
    size, rows = lattice.problem.num_layers, np.arange(len(state))
    layer, count = np.zeros_like(state), np.zeros_like(state)
    ends, classes, ways = [], [], []
    while True:
        last, of_class, way = taken[:, rows, np.minimum(layer, size - 1), state].astype(np.int64)
        going = (layer < size) & (last >= 0)
        if not going.any():
            break
        layer = np.where(going, last + 1, layer)
        state = np.where(going, np.maximum(state - offsets[of_class], 0), state)
        count += going
        ends.append(layer)
        classes.append(np.where(going, of_class, 0))
        ways.append(np.where(going, way, 0))
    if not ends:
        none = np.zeros((len(rows), 1), dtype=np.int64)
        return lattice.of_ways(none, none, none, count)
    return lattice.of_ways(np.stack(ends, 1), np.stack(classes, 1), np.stack(ways, 1), count)


@final
class _States:
    """S states of a dynamic program over stages, each an amount used of every one of R resources, such as devices of a
    kind of host; in the first one nothing is used.

    Attributes:
        uses: shape (Q, R), how much of each resource a stage uses, by Q classes of sites (submeshes that are alike).
        back: shape (Q,), the difference between the indices of a state and of that without a stage of a class.
    """

    def __init__(self, lattice: Lattice) -> None:
        self.uses, self._available = lattice.choices.uses, lattice.choices.available
        self._exact, self._dims = lattice.choices.exact, tuple((self._available + 1).tolist())
        steps = np.append(np.cumprod(np.array(self._dims[:0:-1], dtype=np.int64))[::-1], 1).astype(np.int64)
        self.back: IntArray = self.uses @ steps

    @property
    def count(self) -> int:
        """Returns the number of states of the dynamic program, which may be too many to keep in memory."""
        return math.prod(self._dims)

    def holds(self) -> NDArray[np.bool_]:
        """Returns whether at least as much is used in each of S states as a stage of each of Q classes of sites uses;
        shape (Q, S).
        """
        return np.asarray((self._used >= self.uses[:, None]).all(axis=2))

    def goal(self) -> IntArray:
        """Returns the indices of the states in which every resource that has to be used up is."""
        return np.flatnonzero(((self._used == self._available) | ~self._exact).all(axis=1))

    @functools.cached_property
    def _used(self) -> IntArray:
        return np.indices(self._dims).reshape(len(self._dims), -1).T


def _theta(
    lattice: Lattice, firsts: IntArray, lasts: IntArray, followed: IntArray, bounds: FloatArray
) -> FloatArray:
    """Returns what stages cost on each of Q classes of sites in each of P ways (submesh and config), plus a penalty for
    being over a bound, in units of time; the arguments' shape, followed by (Q, P).

    The transfer to a stage counts as on the mean. Infinite where so many stages can't follow.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        firsts: the stages' first layers.
        lasts: the stages' last layers.
        followed: how many stages follow each.
        bounds: bounds on the largest stage, in units of time.
    """
    choices, where = lattice.choices, (firsts, lasts)
    entry = choices.crossing_s.mean(axis=1)[firsts] / lattice.unit_s
    costs = choices.costs_s[where] / lattice.unit_s + entry[..., None]
    weights = _in_units(lattice, choices.weights[where], costs)
    cost = weights + entry[..., None] + _over(lattice, costs, bounds[..., None, None])
    return np.where(np.isfinite(costs) & (choices.room[where] >= followed[..., None, None]), cost, np.inf)


def _in_units(lattice: Lattice, weights: FloatArray, costs: FloatArray) -> FloatArray:
    """Returns weights in units; with the objective that counts stages, the least that the dearest of them costs."""
    if lattice.problem.objective == "inference":
        return np.where(np.isfinite(costs), lattice.reference, np.inf)
    return np.asarray(weights / lattice.unit_s)


def _over(lattice: Lattice, costs: FloatArray, bounds: FloatArray) -> FloatArray:
    """Returns the cost of being over a bound, in units; zero where a stage can't be."""
    over = np.where(np.isfinite(costs), np.maximum(costs - bounds, 0.0), 0.0)
    return np.asarray(lattice.arrays.steepness * over)


def _covered_room(weights: FloatArray, room: IntArray) -> IntArray:
    """Returns for each way to run a stage how many following stages some cheaper way that weighs no more allows.

    The ways, such as configs, are in the order of their costs. If several cheaper ways weigh no more, the largest of
    their numbers counts; if there is none, it is -1.

    Args:
        weights: shape (..., W), what a way adds to a sum.
        room: shape (..., W), how many stages may follow it for its memory's sake.

    >>> _covered_room(np.array([1.0, 5.0, 2.0]), np.array([1, 3, 3])).tolist()
    [-1, 1, 1]
    """
    covered = np.full(weights.shape, -1, dtype=np.int64)
    for n in range(1, weights.shape[-1]):
        earlier = np.where(weights[..., :n] <= weights[..., n, None], room[..., :n], -1)
        covered[..., n] = earlier.max(axis=-1)
    return covered
