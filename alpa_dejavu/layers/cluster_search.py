"""The searches behind clustering equations into layers, as compiled loops: starts are tried in ascending order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled

IntArray = NDArray[np.int64]
SingleArray = NDArray[np.float32]
_LEAST_PRODUCTS = 3
_TOLERANCE = 1 + 1e-4


def allowed(
    heavy: NDArray[np.bool_], flop: NDArray[np.float64], num_layers: int, eps: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns which layers Alpa's `AutoLayerOption` allows, as arrays begins and ends of shape (equations,): the
    equations k..r-1 may be a layer if begins[k] <= r < ends[k].

    They have enough of the `heavy` equations, which have products, and at most (1 + eps) times their share of the
    operations.
    """
    num = len(heavy)
    bound = float(flop.sum()) / num_layers * (1 + eps)
    least = min(_LEAST_PRODUCTS, int(int(heavy.sum()) / num_layers))
    where = np.flatnonzero(heavy)
    begins = np.full(num, num + 1, dtype=np.int64)
    ends = np.full(num, num + 1, dtype=np.int64)
    earlier = 0
    for n, position in enumerate([*where, num]):
        sums = np.cumsum(flop[where[n:]])
        enough = int(np.searchsorted(sums, bound))
        starts = np.arange(earlier, min(position + 1, num))
        earlier = position + 1
        last = n + max(enough, least)
        if last < len(where):
            ends[starts] = where[last] + 1
        first = n + min(enough + 1, least) - 1
        if bound <= 0 or least == 0:
            begins[starts] = starts + 1
        elif first < len(where):
            begins[starts] = where[first] + 1
    return begins, ends


def least_layers(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Returns for each of N equations the least number of layers that it and all later ones can be cut into, where
    `begins` and `ends` say which layers are allowed; shape (N + 1,), with 0 at the end. N + 1 means that there is no
    way.
    """
    num = len(begins)
    least = np.full(num + 1, num + 1, dtype=np.int64)
    least[num] = 0
    for start in range(num - 1, -1, -1):
        within = least[begins[start] : ends[start]]
        if len(within):
            least[start] = min(num + 1, 1 + int(within.min()))
    return least


@compiled(
    "(i8[::1], i8[::1], i8[::1], b1, f8[::1], i8[::1], i8[::1], i8[::1], i8[::1], i8[::1], "
    "f4[:,::1], f4[:,::1], f4[:,::1], i4[:,::1])"
)
def search(
    begins: IntArray,
    ends: IntArray,
    ahead: IntArray,
    within: bool,
    sizes: NDArray[np.float64],
    first_users: IntArray,
    firsts: IntArray,
    takings: IntArray,
    operands: IntArray,
    next_users: IntArray,
    most: SingleArray,
    total: SingleArray,
    uneven: SingleArray,
    start: NDArray[np.int32],
) -> None:
    """Fills the tables of the best ways to cut the first r of N equations into q of Q layers, at index [r, q].

    A way wins if its largest layer takes fewer bytes from earlier layers, or all its layers together do, or if they
    take about as many and are more even in their numbers of equations. This is the rule of Alpa's `AutoLayerOption`;
    the order in which ways are tried is part of it, and so is single precision.

    Args:
        begins: a layer that starts at equation k may end before equation r for begins[k] <= r < ends[k], shape (N,).
        ends: the other side of that range, shape (N,).
        ahead: the least number of layers that the equations from each one on can be cut into, shape (N + 1,).
        within: whether layers that `begins` and `ends` don't allow are left out.
        sizes: the bytes of V values that equations make, shape (V,).
        first_users: the first equation that takes each value, -1 for none, shape (V,).
        firsts: equation k makes the values firsts[k] to firsts[k + 1] - 1, shape (N + 1,).
        takings: equation k takes entries takings[k] to takings[k + 1] - 1 of the next two arrays, shape (N + 1,).
        operands: the values that equations take, in the order of the equations.
        next_users: for each entry of `operands` the next equation that takes the same value, -1 for none.
        most: a table of the most bytes that a layer takes from earlier ones, (N + 1, Q + 1), filled with infinity.
        total: a table of the bytes that all layers together take from earlier ones, likewise.
        uneven: a table of how uneven the layers' numbers of equations are, likewise.
        start: a table of the equation at which the last layer starts, shape (N + 1, Q + 1), filled with -1.
    """
    num, num_layers = len(begins), most.shape[1] - 1
    enough = np.full(most.shape, np.inf)
    arriving = np.zeros(num + 1)
    entering = np.zeros(num + 1, dtype=np.float32)
    most[0, 0] = 0.0
    total[0, 0] = 0.0
    uneven[:, 0] = 0.0
    for k in range(num):
        first, last = begins[k], min(ends[k], num + 1)
        lowest, highest = (first, last) if within else (k + 1, num + 1)
        stop = num_layers
        if within:
            stop = min(num_layers, num_layers + 1 - ahead[k])
        if lowest < highest:
            bytes_so_far = 0.0
            for end in range(k + 1, highest):
                bytes_so_far += arriving[end]
                entering[end] = bytes_so_far if first <= end < last else np.inf
            for end in range(lowest, highest):
                for before in range(stop):
                    if within and not np.isfinite(most[k, before]):
                        continue
                    q = before + 1
                    largest = max(most[k, before], entering[end])
                    if largest > enough[end, q]:
                        continue
                    new_total = total[k, before] + entering[end]
                    new_uneven = uneven[k, before] + k**2 / q - end**2 / (q + 1) + (end - k) ** 2
                    near = new_total <= np.float64(total[end, q]) * _TOLERANCE and new_uneven < uneven[end, q]
                    if largest < most[end, q] or new_total < total[end, q] or near:
                        most[end, q] = largest
                        enough[end, q] = np.float64(largest) * _TOLERANCE
                        total[end, q] = new_total
                        uneven[end, q] = new_uneven
                        start[end, q] = k
        for n in range(takings[k], takings[k + 1]):
            size = sizes[operands[n]]
            arriving[k + 1] -= size
            if next_users[n] >= 0:
                arriving[next_users[n] + 1] += size
        for value in range(firsts[k], firsts[k + 1]):
            if first_users[value] >= 0:
                arriving[first_users[value] + 1] += sizes[value]


@compiled("(i8[::1], i8[::1], i8)")
def reachable(begins: IntArray, ends: IntArray, num_layers: int) -> bool:
    """Returns whether N equations can be cut into so many layers, each of which `begins` and `ends` allow."""
    num = len(begins)
    ways = np.zeros((num + 2, num_layers + 2), dtype=np.int64)
    ways[0, 0], ways[1, 0] = 1, -1
    for start in range(num + 1):
        for q in range(num_layers + 1):
            if start:
                ways[start, q] += ways[start - 1, q]
            if start < num and ways[start, q] > 0 and begins[start] < min(ends[start], num + 1):
                # Each end in the range has one way more: what is added where it begins is taken off where it ends.
                ways[begins[start], q + 1] += 1
                ways[min(ends[start], num + 1), q + 1] -= 1
    return bool(ways[num, num_layers] > 0)
