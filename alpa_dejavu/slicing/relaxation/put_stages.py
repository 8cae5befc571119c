"""Steps of dynamic programs over stages and the devices that they use, compiled; of equal sums the first one counts.

A state is how much is used; `back` tells how far before it the one is that lacks what a class of submeshes uses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.slicing.relaxation._batch import IntArray


@compiled(
    "(i8, i8[::1], f4[:, :, :, ::1], i8[:, :, ::1], i8[:, :, ::1], b1[:, ::1], b1[:, ::1], i8[::1], "
    "f4[:, :, ::1], i2[:, :, ::1], i2[:, :, :, ::1])"
)
def put_before(
    layer: int,
    lasts: IntArray,
    cost: NDArray[np.float32],
    room: IntArray,
    ways: IntArray,
    wanted: NDArray[np.bool_],
    holds: NDArray[np.bool_],
    back: IntArray,
    best: NDArray[np.float32],
    count: NDArray[np.int16],
    taken: NDArray[np.int16],
) -> None:
    """Extends a dynamic program over plans, which goes from the last layer to the first: adds plans of the layers from
    one layer on, and sets `best`, `count` and `taken` for that layer.

    The first stage of such a plan has one of J last layers, one of Q classes of sites, and one of W ways to run it
    there (a submesh and config). A state says how much of each resource, such as devices, is used, and is one of S
    numbers. Of equal plans the first one stays.

    Args:
        layer: the layer that the plans begin with.
        lasts: shape (J,), the last layers of their first stages.
        cost: shape (B, J, Q, W), costs of first stages for each of B bounds on the largest stage; inf if not allowed.
        room: shape (J, Q, W), how many stages may follow such a stage.
        ways: shape (J, Q, W), the number of each way.
        wanted: shape (Q, W), whether a way of a class is looked at.
        holds: shape (Q, S), whether at least as much is used in a state as a stage of a class uses.
        back: shape (Q,), the difference between the numbers of a state and of that without such a stage.
        best: shape (B, L + 1, S), the least sum of costs from a layer on.
        count: shape (B, L + 1, S), how many stages have that sum.
        taken: shape (3, B, L, S), the last layer, class and way of the first of these.
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
                        if total < least[state] and followed[state - step] <= room[j, q, w]:
                            least[state], which[state] = total, j
                for state in range(step, num_states):
                    if least[state] < best[b, layer, state] and holds[q, state]:
                        j = which[state]
                        best[b, layer, state] = least[state]
                        count[b, layer, state] = count[b, lasts[j] + 1, state - step] + 1
                        taken[0, b, layer, state] = lasts[j]
                        taken[1, b, layer, state] = q
                        taken[2, b, layer, state] = ways[j, q, w]
