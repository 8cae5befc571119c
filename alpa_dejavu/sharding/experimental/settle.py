"""Shares made choices, and choices bettered, one node at a time.

References:
    Raghavan, Probabilistic construction of deterministic algorithms, 1988 (conditional expectations).
    Besag, On the Statistical Analysis of Dirty Pictures, 1986 (iterated conditional modes).
"""

from __future__ import annotations

import numpy as np

from alpa_dejavu.sharding.experimental.padded import FloatArray, IntArray, Padded

_SWEEPS = 100
_ROUNDING = 1e-12


def settled(padded: Padded, shares: FloatArray) -> IntArray:
    """Rounds relaxed choices of a cost graph's nodes to choices that can't be improved at a single node.

    A relaxed choice gives each choice of a node a share. Each node in turn takes the choice that costs least with its
    neighbours' shares. As the cost is linear in each node's shares, the choices after the first sweep cost no more than
    the shares did. Then each takes the one that costs least with its neighbours' choices, until none changes.

    Args:
        padded: the graph as arrays, with N nodes of at most K choices.
        shares: S sets of the shares of each node's choices, shape (N, K, S).

    Returns:
        The choices of each node in each set, shape (N, S).
    """
    shares = shares.copy()
    count, width = len(padded.nodes), padded.costs.shape[1]
    choices = np.full((count, shares.shape[2]), -1, dtype=np.intp)
    columns = np.arange(shares.shape[2])
    limited = [np.flatnonzero(padded.use[:, node].any(axis=1)) for node in range(count)]
    used = np.tensordot(padded.use, shares, 2)
    stale = np.ones(count, dtype=np.bool_)
    for _ in range(_SWEEPS):
        for node in np.flatnonzero(stale):
            stale[node] = False
            ends, rows = padded.ends(node), limited[node]
            others = padded.other[ends]
            near = shares[others].reshape(len(others) * width, len(columns))
            local = padded.costs[node, :, None] + padded.matrices[ends].reshape(-1, width).T @ near
            if len(rows):
                use = padded.use[rows, node]
                without = used[rows] - use @ shares[node]
                local += padded.penalty(without[:, None, :] + use[:, :, None])
            before, best = choices[node], local.argmin(axis=0)
            worth = local[best, columns] < local[before, columns] - _ROUNDING * padded.dear
            after = np.where((before < 0) | worth, best, before)
            if (after == before).all():
                continue
            shares[node] = 0.0
            shares[node, after, columns] = 1.0
            choices[node] = after
            stale[others] = True
            if len(rows):
                used[rows] = without + use[:, after]
                stale[:] = True
        if not stale.any():
            break
    return choices


def one_hot(padded: Padded, choices: IntArray) -> FloatArray:
    """Returns S sets of choices for a cost graph's N nodes, shape (N, S), as one-hot arrays, shape (N, K, S).

    K is the number of choices that nodes have at most.
    """
    found: FloatArray = (np.arange(padded.costs.shape[1])[:, None] == choices[:, None, :]).astype(np.float64)
    return found
