"""The layers that Alpa's rule allows: they have enough products, and not too many operations."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LEAST_PRODUCTS = 3


def allowed(
    heavy: NDArray[np.bool_], flop: NDArray[np.float64], num_layers: int, eps: float
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns which layers Alpa's `AutoLayerOption` allows: those with enough products and not too many operations.

    Args:
        heavy: which equations of a jaxpr have matrix products, shape (equations,).
        flop: the floating-point operations of each equation, shape (equations,).
        num_layers: how many layers the equations are to be cut into.
        eps: how much more than the average of the layers' operations a layer may have, as a share of that.

    Returns:
        Two arrays, begins and ends, of shape (equations,): the equations k..r-1 may be a layer if
        begins[k] <= r < ends[k].
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
    """Returns for each of N equations the least number of layers that it and all later ones can be cut into.

    The result has shape (N + 1,), with 0 at the end; N + 1 means that there is no way.

    Args:
        begins: the equations k..r-1 may be a layer for begins[k] <= r < ends[k], shape (N,).
        ends: the other side of that range, shape (N,).
    """
    num = len(begins)
    least = np.full(num + 1, num + 1, dtype=np.int64)
    least[num] = 0
    for start in range(num - 1, -1, -1):
        within = least[begins[start] : ends[start]]
        if len(within):
            least[start] = min(num + 1, 1 + int(within.min()))
    return least
