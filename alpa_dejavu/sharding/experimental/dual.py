"""A lower bound on the cost of all choices of a cost graph's nodes.

Costs are moved between a node and its edges, which changes the cost of no choices. Whatever has been moved, the sum of
each node's and each edge's least cost is a lower bound; costs are moved along the program, back and forth, such that
it rises. A memory limit adds a price on the bytes that choices take and pays back the whole limit's, which makes
choices within the limit no dearer.

References:
    Kolmogorov, A New Look at Reweighted Message Passing, 2015 (for pairs it is his TRW-S, 2006).
    Wainwright, Jaakkola and Willsky, MAP Estimation via Agreement on Trees, 2005.
"""

from __future__ import annotations

from typing import final

import numpy as np

from alpa_dejavu.sharding.experimental.padded import FloatArray, IntArray, Padded

ENOUGH = 0.01
"""Rounds go on as long as each closes at least this share of the gap."""


@final
class Dual:
    """A lower bound on the cost of all choices for a cost graph, raised by moving costs between its nodes and edges.

    Attributes:
        bound: the best lower bound so far.
        prices: the price of using up each of the R memory limits, shape (R,).
    """

    def __init__(self, padded: Padded) -> None:
        self._padded = padded
        self._own, self.prices = padded.costs, np.zeros(len(padded.use))
        there = np.arange(padded.costs.shape[1]) < padded.sizes[padded.other][:, None]
        self._matrices = np.where(there[:, :, None], padded.matrices, np.inf)
        self._into = np.zeros((len(padded.other), padded.costs.shape[1]))  # what each end's node got from its edge
        self._once = np.concatenate([np.arange(a, b) for a, b in zip(padded.middle, padded.first[1:], strict=True)])
        self.bound = self._bound()

    def charge(self, prices: FloatArray) -> None:
        """Sets the prices of the memory limits, which are added to the costs of choices that take memory.

        Args:
            prices: the price of using up each of the R limits, shape (R,), none negative.
        """
        self.prices = prices
        self._own = self._padded.costs + np.tensordot(prices, self._padded.use, 1)

    def rise(self, below: float, rounds: int) -> bool:
        """Raises the lower bound in rounds, until one raises it too little or it reaches the cost `below`.

        Args:
            below: a cost that the bound needn't exceed, such as that of the best choices known.
            rounds: the most rounds.

        Returns:
            Whether all rounds were used up, so that more of them might raise the bound further.
        """
        count = len(self._padded.nodes)
        bound = self._bound()
        for _ in range(rounds):
            if self.reaches(below):
                return False
            for node in range(count):
                self._pass(node, forward=True)
            for node in range(count - 1, -1, -1):
                self._pass(node, forward=False)
            before, bound = bound, self._bound()
            self.bound = max(self.bound, bound)
            if bound - before <= ENOUGH * (min(below, self._padded.dear) - bound):
                return False
        return True

    def reaches(self, cost: float) -> bool:
        """Returns whether the lower bound is as high as a given cost, but for rounding."""
        return self.bound >= cost - 1e-9 * abs(cost) - 1e-12 * self._padded.dear

    def choices(self) -> IntArray:
        """Chooses for each node of the cost graph in turn what is cheapest given the earlier nodes' choices.

        Costs are those after the moves that raised the bound. The result has shape (N, 1) for N nodes.
        """
        padded = self._padded
        found = np.zeros(len(padded.nodes), dtype=np.intp)
        for node in range(len(padded.nodes)):
            first, middle, last = padded.first[node], padded.middle[node], padded.first[node + 1]
            before = self._matrices[np.arange(first, middle), found[padded.other[first:middle]]].sum(axis=0)
            found[node] = int((self._own[node] + before + self._into[middle:last].sum(axis=0)).argmin())
        return found[:, None]

    def moved(self) -> tuple[FloatArray, FloatArray]:
        """Returns the costs of nodes and edges after the moves that raised the bound, less each one's least cost.

        They have shape (N, K) for N nodes of at most K choices, and (H, K, K) for H ends of edges, with the choices of
        an end's own node in rows; they are zero for choices that a node doesn't have.
        """
        padded = self._padded
        has, left = self._has(), self._left(np.arange(len(padded.other)))
        has = np.where(padded.allowed, has - has.min(axis=1, keepdims=True), 0.0)
        least = left.min(axis=(1, 2), keepdims=True) if len(left) else left
        left = np.where(np.isfinite(left), left - least, 0.0)
        return has, np.ascontiguousarray(left.transpose(0, 2, 1))

    def _pass(self, node: int, forward: bool) -> None:
        """A node gets from the edges behind all that they can give, and gives those ahead equal shares of what it has.

        It keeps some where there are fewer ahead than behind, so that the bound can't fall.
        """
        padded, size = self._padded, self._padded.sizes[node]
        first, middle, last = padded.first[node], padded.middle[node], padded.first[node + 1]
        behind, ahead = slice(first, middle), slice(middle, last)
        if not forward:
            behind, ahead = ahead, behind
        given = self._into[padded.reverse[behind]]
        self._into[behind, :size] = (self._matrices[behind, :, :size] - given[:, :, None]).min(axis=1)
        if ahead.stop > ahead.start:
            has = self._own[node, :size] + self._into[first:last, :size].sum(axis=0)
            self._into[ahead, :size] -= has / max(middle - first, last - middle)

    def _bound(self) -> float:
        edges = self._left(self._once).min(axis=(1, 2)).sum() if len(self._once) else 0.0
        return float(self._has().min(axis=1).sum() + edges - self.prices.sum())

    def _has(self) -> FloatArray:
        """Returns the costs of each node's choices, as moved so far, shape (N, K)."""
        return self._own + self._padded.by_node(self._into)

    def _left(self, ends: IntArray) -> FloatArray:
        """Returns the costs of some edges, as moved so far, with an end's own choices in columns.

        They are infinite for choices that a node doesn't have.
        """
        padded = self._padded
        others = padded.reverse[ends]
        left = self._matrices[ends] - self._into[others][:, :, None] - self._into[ends][:, None, :]
        own = np.arange(left.shape[2]) < padded.sizes[padded.other[others]][:, None]
        found: FloatArray = np.where(own[:, None, :], left, np.inf)
        return found
