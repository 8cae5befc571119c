"""The best plans that can be put together from stages that were drawn, with choices that take what there is."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from alpa_dejavu._covered_room import covered_room
from alpa_dejavu.relaxation._batch import Batch, FloatArray, IntArray
from alpa_dejavu.relaxation._blocks import MOST_STATES, devices_of, reached, strides, theta
from alpa_dejavu.relaxation._lattice import Lattice


def recombined(lattice: Lattice, segments: IntArray, bounds: FloatArray) -> Batch | None:
    """One plan for each bound, of those segments of layers that are given.

    How many stages follow, for memory's sake, is known of the cheapest rest alone; a dearer one with fewer isn't kept.

    Args:
        lattice: of the problem.
        segments: shape (E, 2), first and last layer, each pair once.
        bounds: shape (B,), on the largest stage, in units.

    Returns:
        Plans; None if there are too many combinations.
    """
    size = lattice.problem.num_layers
    uses, available, exact = devices_of(lattice)
    dims = tuple(int(each) + 1 for each in available)
    if float(np.prod(dims, dtype=float)) * len(bounds) * len(segments) * len(uses) > 4 * MOST_STATES:
        return None
    table = _Suffixes(lattice, bounds, dims)
    for layer in range(size - 1, -1, -1):
        lasts = segments[segments[:, 0] == layer, 1]
        if len(lasts):
            table.begin(layer, lasts, uses)
    best, taken = table.best, table.taken
    goal = np.flatnonzero(reached(dims, available, exact))
    flat = best[:, 0].reshape(len(bounds), -1)
    state = goal[flat[:, goal].argmin(axis=1)]
    found = np.isfinite(flat[np.arange(len(bounds)), state])
    return _traced(lattice, taken.reshape(3, len(bounds), size, -1), state, uses @ strides(dims)).take(found)


STEEP, FAR = 8.0, 1.3
"""With so many micro-batches, stages of so many times a bound aren't looked at."""


@final
class _Suffixes:
    """For each bound, first layer and devices used: the least sum, of how many stages, and which is the first."""

    def __init__(self, lattice: Lattice, bounds: FloatArray, dims: tuple[int, ...]) -> None:
        self._lattice, self._bounds, self._dims = lattice, bounds, dims
        size = lattice.problem.num_layers
        self.best = np.full((len(bounds), size + 1, *dims), np.inf, dtype=np.float32)
        nothing_used = (slice(None), size, *(0 for _ in dims))
        self.best[nothing_used] = 0.0
        self._count = np.zeros(self.best.shape, dtype=np.int16)
        self.taken = np.full((3, len(bounds), size, *dims), -1, dtype=np.int16)

    def begin(self, layer: int, lasts: IntArray, uses: IntArray) -> None:
        """All plans that begin with a layer, by the last layer of their first stage."""
        lattice, dims = self._lattice, self._dims
        ways = self._ways(layer, lasts)
        cost = theta(lattice, np.full_like(lasts, layer), lasts, np.zeros_like(lasts), self._bounds[:, None])
        cost = np.take_along_axis(cost, np.broadcast_to(ways, (len(cost), *ways.shape)), axis=-1).astype(np.float32)
        room = np.take_along_axis(lattice.choices.room[layer, lasts], ways, axis=-1)
        # What is far over a bound is dearer than any other bound's plan.
        cost = np.where(self._far(layer, lasts, ways) | self._useless(layer, lasts, ways, room), np.inf, cost)
        after, stages = self.best[:, lasts + 1], self._count[:, lasts + 1]
        most = int(stages.max())
        for q, way in np.ndindex(*ways.shape[1:]):
            rows = np.flatnonzero(np.isfinite(cost[..., q, way]).any(axis=0))
            if (uses[q] >= dims).any() or not len(rows):
                continue
            tight = bool((room[rows, q, way] < most).any())
            if way and lattice.problem.per_step_s is None and not (room[rows, q, 0] < most).any():
                continue
            to = tuple(slice(int(u), None) for u in uses[q])
            source: Any = (slice(None), rows, *(slice(0, d - int(u)) for d, u in zip(dims, uses[q], strict=True)))
            ones = tuple(1 for _ in dims)
            sums, followed = after[source], stages[source]
            sums += cost[:, rows, q, way].reshape(*sums.shape[:2], *ones)
            if tight:
                sums[followed > room[rows, q, way].reshape(1, -1, *ones)] = np.inf
            pick = sums.argmin(axis=1)
            place: Any = (np.arange(len(sums)).reshape(-1, *ones), pick, *np.indices(pick.shape[1:], sparse=True))
            kept: Any = (slice(None), layer, *to)
            least = sums[place]
            better = least < self.best[kept]
            if not better.any():
                continue
            np.copyto(self.best[kept], least, where=better)
            np.copyto(self._count[kept], followed[place] + np.int16(1), where=better)
            ends, chosen = (each.astype(np.int16)[pick] for each in (lasts[rows], ways[rows, q, way]))
            for n, part in enumerate((ends, np.int16(q), chosen)):
                np.copyto(self.taken[n][kept], part, where=better)

    def _ways(self, layer: int, lasts: IntArray) -> IntArray:
        """Of each class, the cheapest first; shape (J, Q, W). All of them, where memory asks for ways in between."""
        if not self._lattice.limited:
            return self._lattice.way[layer, lasts]
        return self._lattice.choices.costs_s[layer, lasts].argsort(axis=-1, kind="stable")

    def _useless(self, layer: int, lasts: IntArray, ways: IntArray, room: IntArray) -> Any:
        """Where a cheaper way has as much room, and doesn't weigh more; (J, Q, W)."""
        weights = np.take_along_axis(self._lattice.choices.weights[layer, lasts], ways, axis=-1)
        return room <= covered_room(weights, room)

    def _far(self, layer: int, lasts: IntArray, ways: IntArray) -> Any:
        """Where a stage is so far over a bound that a plan within another bound is better; (B, J, Q, W)."""
        lattice = self._lattice
        if lattice.arrays.steepness < STEEP:
            return np.zeros((len(self._bounds), *ways.shape), dtype=np.bool_)
        costs = np.take_along_axis(lattice.choices.costs_s[layer, lasts], ways, axis=-1) / lattice.unit_s
        return costs > self._bounds[:, None, None, None] * FAR


def _traced(lattice: Lattice, taken: Any, state: IntArray, offsets: IntArray) -> Batch:
    """The plans, from their first layer on."""
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
