"""The best plans that can be put together from stages that were drawn, with choices that take what there is.

They are for given bounds on the largest stage, over which a second costs B - 1: so what is put together costs no more
than it is said to, whatever the bound. A state of the dynamic program is how much is used of each resource, such as
devices of a kind of host; in the first one nothing is used. Of equal sums the first one counts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray
from alpa_dejavu.slicing.relaxation._lattice import Lattice

MOST_STATES = 160_000_000
"""Plans aren't put together where there would be more combinations of used devices, stages, choices and bounds."""
STEEP, FAR = 8.0, 1.3
"""If the bound's steepness is at least the first, stages that cost so many times a bound aren't looked at."""


def recombined(lattice: Lattice, segments: IntArray, bounds: FloatArray) -> Batch | None:
    """Returns for each bound on the largest stage the cheapest plan that can be put together from given segments of
    layers, each as a stage, with any submeshes and configs; None if there are too many combinations to look at.

    Memory limits how many stages may follow one, which is only checked against the cheapest continuation: a dearer one
    with fewer stages isn't kept. Segments have shape (E, 2), first and last layer, each pair once; bounds, shape (B,),
    are in units of time, and being over one is penalised.
    """
    choices, size, num_bounds = lattice.choices, lattice.problem.num_layers, len(bounds)
    dims = tuple((choices.available + 1).tolist())
    num_states = math.prod(dims)
    if num_states * num_bounds * len(segments) * len(choices.uses) > MOST_STATES:
        return None
    back = choices.uses @ np.append(np.cumprod(np.array(dims[:0:-1], dtype=np.int64))[::-1], 1).astype(np.int64)
    used = np.indices(dims).reshape(len(dims), -1).T
    holds = (used >= choices.uses[:, None]).all(axis=2)
    best = np.full((num_bounds, size + 1, num_states), np.inf, dtype=np.float32)
    best[:, size, 0] = 0.0
    count = np.zeros(best.shape, dtype=np.int16)
    chosen = np.full((3, num_bounds, size, num_states), -1, dtype=np.int16)
    for layer in range(size - 1, -1, -1):
        lasts = segments[segments[:, 0] == layer, 1]
        if len(lasts):
            stages = _first_stages(lattice, layer, lasts, bounds, count[:, lasts + 1].max())
            _put_before(layer, lasts, *stages, holds, back, best, count, chosen)
    first = best[:, 0]
    goal = np.flatnonzero(((used == choices.available) | ~choices.exact).all(axis=1))
    state = goal[first[:, goal].argmin(axis=1)]
    feasible = np.isfinite(first[np.arange(num_bounds), state])
    return _traced(lattice, chosen, state, back).take(feasible)


def _first_stages(
    lattice: Lattice, layer: int, lasts: IntArray, bounds: FloatArray, most: int
) -> tuple[NDArray[np.float32], IntArray, IntArray, NDArray[np.bool_]]:
    """Returns what `_put_before` takes of stages that begin with a layer: costs, how many may follow, ways, and which
    of these are looked at. `most` stages follow at most.

    A cost is a weight and the penalty for being over a bound, in units of time, with the transfer to the stage as on
    the mean.
    """
    choices, unit_s, steepness = lattice.choices, lattice.unit_s, lattice.arrays.steepness
    # All ways are tried, the cheapest first, if memory matters.
    ways = lattice.way[layer, lasts]
    if lattice.limited:
        ways = choices.costs_s[layer, lasts].argsort(axis=-1, kind="stable")
    own_s, weights, spare = (
        np.take_along_axis(table[layer, lasts], ways, axis=-1)
        for table in (choices.costs_s, choices.weights, choices.followers)
    )
    entry = choices.crossing_s.mean(axis=1)[layer] / unit_s
    costs = own_s / unit_s + entry[:, None]
    finite, limits = np.isfinite(costs), bounds[:, None, None, None]
    # With the objective that counts stages, a weight is the least that the dearest of them costs.
    counts = lattice.problem.objective == "inference"
    in_units = np.where(finite, lattice.reference, np.inf) if counts else weights / unit_s
    over = steepness * np.where(finite, np.maximum(costs - limits, 0.0), 0.0)
    cost = np.where(finite & (spare >= 0), in_units + entry[:, None] + over, np.inf)
    # What is far over a bound is dearer than any other bound's plan; and a cheaper way may have as much room.
    far = (own_s / unit_s > limits * FAR) & (steepness >= STEEP)
    cost = np.where(far | (spare <= _covered_room(weights, spare)), np.inf, cost)
    # Where memory is in nobody's way, a dearer way is of no use.
    tight = (np.isfinite(cost).any(axis=0) & (spare[..., :1] < most)).any(axis=0)
    wanted = tight | (np.arange(ways.shape[2]) == 0) | (lattice.problem.per_step_s is not None)
    return cost.astype(np.float32), spare, ways, wanted


@compiled(
    "(i8, i8[::1], f4[:, :, :, ::1], i8[:, :, ::1], i8[:, :, ::1], b1[:, ::1], b1[:, ::1], i8[::1], "
    "f4[:, :, ::1], i2[:, :, ::1], i2[:, :, :, ::1])"
)
def _put_before(
    layer: int,
    lasts: IntArray,
    cost: NDArray[np.float32],
    spare: IntArray,
    ways: IntArray,
    wanted: NDArray[np.bool_],
    holds: NDArray[np.bool_],
    back: IntArray,
    best: NDArray[np.float32],
    count: NDArray[np.int16],
    chosen: NDArray[np.int16],
) -> None:
    """Adds plans of the layers from one layer on to the dynamic program, which goes from the last layer to the first.

    The first stage of such a plan has one of J last layers, one of Q classes of sites, and one of W ways to run it
    there (a submesh and config).

    Args:
        layer: the first layer.
        lasts: shape (J,), the last layers of their first stages.
        cost: shape (B, J, Q, W), costs of first stages for each of B bounds on the largest stage; inf if not allowed.
        spare: shape (J, Q, W), how many stages may follow such a stage.
        ways: shape (J, Q, W), the number of each way.
        wanted: shape (Q, W), whether a way of a class is looked at.
        holds: shape (Q, S), whether at least as much is used in a state as a stage of a class uses.
        back: shape (Q,), the difference between the numbers of a state and of that without such a stage.
        best: shape (B, L + 1, S), the least sum of costs from a layer on.
        count: shape (B, L + 1, S), how many stages have that sum.
        chosen: shape (3, B, L, S), the last layer, class and way of the first of these.
    """
    num_bounds, num_stages, num_classes, num_ways = cost.shape
    num_states = best.shape[2]
    least = np.empty(num_states, np.float32)
    which = np.empty(num_states, np.int64)
    for b in range(num_bounds):
        for q in range(num_classes):
            step = back[q]
            for w in range(num_ways):
                if not wanted[q, w]:
                    continue
                least[:] = np.inf
                for j in range(num_stages):
                    own = cost[b, j, q, w]
                    if own == np.inf:
                        continue
                    after, followed = best[b, lasts[j] + 1], count[b, lasts[j] + 1]
                    for state in range(step, num_states):
                        total = after[state - step] + own
                        if total < least[state] and followed[state - step] <= spare[j, q, w]:
                            least[state], which[state] = total, j
                for state in range(step, num_states):
                    if least[state] < best[b, layer, state] and holds[q, state]:
                        j = which[state]
                        best[b, layer, state] = least[state]
                        count[b, layer, state] = count[b, lasts[j] + 1, state - step] + 1
                        chosen[0, b, layer, state] = lasts[j]
                        chosen[1, b, layer, state] = q
                        chosen[2, b, layer, state] = ways[j, q, w]


def _traced(lattice: Lattice, chosen: Any, state: IntArray, back: IntArray) -> Batch:
    """Returns the plans, traced from their first layer on."""
    size, rows = lattice.problem.num_layers, np.arange(len(state))
    layer, count = np.zeros_like(state), np.zeros_like(state)
    steps: list[Any] = []
    while True:
        last, of_class, way = chosen[:, rows, np.minimum(layer, size - 1), state].astype(np.int64)
        going = (layer < size) & (last >= 0)
        if not going.any():
            break
        layer = np.where(going, last + 1, layer)
        state = np.where(going, np.maximum(state - back[of_class], 0), state)
        count += going
        steps.append((layer, np.where(going, of_class, 0), np.where(going, way, 0)))
    ends, classes, ways = np.array(steps or [np.zeros((3, len(rows)), dtype=np.int64)]).transpose(1, 2, 0)
    return lattice.of_ways(ends, classes, ways, count)


def _covered_room(weights: FloatArray, spare: IntArray) -> IntArray:
    """Returns for each way to run a stage how many following stages some cheaper way that weighs no more allows; -1 if
    there is none. Ways, in the order of their costs, have weights, what they add to a sum, and how many stages may
    follow them for memory's sake, both of shape (..., W).

    >>> _covered_room(np.array([1.0, 5.0, 2.0]), np.array([1, 3, 3])).tolist()
    [-1, 1, 1]
    """
    covered = np.full(weights.shape, -1, dtype=np.int64)
    for n in range(1, weights.shape[-1]):
        earlier = np.where(weights[..., :n] <= weights[..., n, None], spare[..., :n], -1)
        covered[..., n] = earlier.max(axis=-1)
    return covered
