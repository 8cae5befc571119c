"""The choices of a cost graph relaxed: each node has a row of shares, softmaxed from logits that follow the gradient.

What shares cost is linear in each row: a node's costs times its row, and for each edge row times matrix times row. With
the rows' entropy, weighed by a temperature, it is smooth; as the temperature falls, the rows become choices.

References:
    Liu, Simonyan and Yang, DARTS: Differentiable Architecture Search, 2019.
    Peterson and Söderberg, A New Method for Mapping Optimization Problems onto Neural Networks, 1989.
    Amari, Natural Gradient Works Efficiently in Learning, 1998.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.sharding.experimental.padded import FloatArray, Padded

STEPS = 100
"""The number of steps of the gradient; the temperature falls at each."""
COLDEST = 1e-4
"""The last temperature, as a share of the first."""
STRIDE = 0.5
"""The share that is gone, at each step, of the way to where the gradient is zero if the neighbours stay as they are.

All nodes go at once.
"""
NOISE = (0.0, 0.02, 0.05, 0.1)
"""How strong the noise on the logits of each start is: 1.0 would count as much as the temperature does."""
PRESSURE = 0.1
"""The share of the ceiling by which a memory limit's price rises in a step in which twice the limit is used."""


def annealed(
    padded: Padded, moved: tuple[FloatArray, FloatArray], ceiling: float, seed: int
) -> tuple[FloatArray, FloatArray]:
    """Anneals the shares of a cost graph's nodes' choices until one choice of each node has almost all.

    Shares are a softmax of logits, for S starts at once. Logits take a step by the gradient with regard to the shares
    (a natural gradient), so that no choice is lost because its share is small. Memory limits are kept by an augmented
    Lagrangian.

    Args:
        padded: the graph as arrays, with N nodes of at most K choices, H ends of edges and R memory limits.
        moved: the costs of choices, shape (N, K), and of edges, shape (H, K, K) with own choices in rows, that are used
            in place of the graph's.
        ceiling: costs above it count as it, since next to the costs of forbidden choices all others would be lost.
        seed: the seed of the noise by which the starts differ.

    Returns:
        The shares, shape (N, K, S), and a price for each memory limit, shape (R,).
    """
    allowed = padded.allowed[:, :, None]
    costs, matrices = (np.minimum(array, ceiling) for array in moved)
    noise = np.random.default_rng(seed).gumbel(size=(*padded.costs.shape, len(NOISE))) * NOISE
    use = padded.use.reshape(len(padded.use), padded.costs.size)
    prices = np.zeros((len(use), len(NOISE)))
    logits, shares = noise, _softmax(noise, allowed)
    for temperature in ceiling * np.geomspace(1.0, COLDEST, STEPS):
        gradient = costs[:, :, None] + _from_neighbours(padded, matrices, shares)
        if len(use):
            over = use @ shares.reshape(padded.costs.size, len(NOISE)) - 1.0
            prices = np.maximum(prices + PRESSURE * ceiling * over, 0.0)
            pressed = prices + ceiling * np.maximum(over, 0.0)
            gradient = gradient + (use.T @ pressed).reshape(shares.shape)
        logits = logits + STRIDE * (noise - gradient / temperature - logits)
        shares = _softmax(logits, allowed)
    return shares, prices.mean(axis=1)


def _from_neighbours(padded: Padded, matrices: FloatArray, shares: FloatArray) -> FloatArray:
    """Returns the cost of each choice with the neighbours' shares, shape (N, K, S)."""
    return padded.by_node(np.matmul(matrices, shares[padded.other]))


def _softmax(logits: FloatArray, allowed: NDArray[np.bool_]) -> FloatArray:
    logits = np.where(allowed, logits, -np.inf)
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: FloatArray = raised / raised.sum(axis=1, keepdims=True)
    return found
