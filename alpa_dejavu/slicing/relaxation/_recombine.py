"""The best plans that can be put together from stages that were drawn, with choices that take what there is."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray
from alpa_dejavu.slicing.relaxation._blocks import MOST_STATES, theta
from alpa_dejavu.slicing.relaxation._covered_room import covered_room
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation._states import States
from alpa_dejavu.slicing.relaxation.put_stages import put_before


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
    states = States(lattice)
    if states.count * len(bounds) * len(segments) * len(states.uses) > 4 * MOST_STATES:
        return None
    table = _Suffixes(lattice, bounds, states)
    for layer in range(size - 1, -1, -1):
        lasts = segments[segments[:, 0] == layer, 1]
        if len(lasts):
            table.begin(layer, lasts)
    first, goal = table.best[:, 0], states.goal()
    state = goal[first[:, goal].argmin(axis=1)]
    found = np.isfinite(first[np.arange(len(bounds)), state])
    return _traced(lattice, table.taken, state, states.back).take(found)


STEEP, FAR = 8.0, 1.3
"""If the bound's steepness is at least the first, stages that cost so many times a bound aren't looked at."""


@final
class _Suffixes:
    """The best ends of plans by bound, first layer and devices used: the least sum, the number of stages, the first."""

    def __init__(self, lattice: Lattice, bounds: FloatArray, states: States) -> None:
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
        cost = theta(lattice, np.full_like(lasts, layer), lasts, np.zeros_like(lasts), self._bounds[:, None])
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
        return room <= covered_room(weights, room)

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
