"""A cost graph's choices by a relaxation and its gradient, in place of an integer linear program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._eliminate import reduce_graph
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import MemoryRow
from alpa_dejavu.sharding._joint import JointCosts
from alpa_dejavu.sharding.experimental.anneal import annealed
from alpa_dejavu.sharding.experimental.dual import Dual
from alpa_dejavu.sharding.experimental.forests import bettered
from alpa_dejavu.sharding.experimental.padded import FloatArray, IntArray, Padded
from alpa_dejavu.sharding.experimental.settle import one_hot, settled

CEILINGS = (0.5, 0.25, 0.75, 0.95)
"""Shares of the moved costs above zero that are below the ceilings which these are annealed with, in turns."""
TURNS = 8
"""The number of turns. Each raises the bound; it anneals, too, if that won something before, or the bound stalls."""
ROUNDS = 100
"""The rounds of the bound's rise in the end; the first turn has two, and each later turn twice as many as before."""
PRICINGS = 10
"""The number of times that memory gets other prices in the end."""
FACTORS = (1.0, 3.0)
"""The factors of memory's prices with which choices are bettered first, before they are bettered within the limits."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Relaxed:
    """The relaxed solver's choices for a cost graph's nodes, with a lower bound on the cost of any choices.

    Attributes:
        choice: the number of each node's choice.
        cost: the total cost of these choices.
        lower_bound: a cost below which no choices are.
    """

    choice: dict[int, int]
    cost: float
    lower_bound: float

    @property
    def slack(self) -> float:
        """Returns the most by which the best choices can be cheaper than those found."""
        return self.cost - self.lower_bound


def solve_relaxed(graph: CostGraph, memory: Sequence[MemoryRow] = (), *, seed: int = 0) -> Relaxed:
    """Finds cheap choices for all nodes of a cost graph, and a lower bound on the cost of the cheapest ones.

    The same arguments get the same answer.

    Args:
        graph: the cost of each choice of each node, and of each pair of choices along an edge. What costs INFINITY_COST
            or more is only chosen where nothing else was found.
        memory: for each limit the bytes that each choice of some nodes takes, and the most that they may add up to.
        seed: the seed of the noise from which the search starts.

    Raises:
        ValueError: no choices were found that are possible and meet the limits; there may be some.
    """
    if not graph.costs:
        return Relaxed({}, 0.0, 0.0)
    padded = Padded.of(graph, memory)
    search = _Search(padded)
    gained = True
    for turn in range(TURNS):
        stalled = not search.prove(2 << turn)
        if search.proved:
            break
        if gained or stalled:
            gained = search.anneal(CEILINGS[turn % len(CEILINGS)], seed + turn)
    for _ in range(PRICINGS if len(memory) else 1):
        if not search.proved:
            search.prove(ROUNDS)
    best, dual = search.best, search.dual
    choice = dict(zip(padded.nodes, best.tolist(), strict=True))
    cost = graph.objective(choice)
    if not np.isfinite(cost) or padded.penalty(padded.used(best[:, None]))[0] > 0:
        raise ValueError("no sharding was found that meets the memory budget per device; solver='ilp' finds any")
    return Relaxed(choice, cost, min(dual.bound, cost))


def ceiling_of(padded: Padded, moved: tuple[FloatArray, FloatArray], share: float) -> float:
    """Returns a quantile of the costs of a graph's nodes and edges, without those that are zero or forbidden.

    Args:
        padded: the graph as arrays; where no costs are left, its price of a forbidden choice (`dear`) is returned.
        moved: the costs of nodes' choices and of edges, after they were moved between these.
        share: the quantile, from 0 to 1.
    """
    every = np.concatenate([array[(array > 0) & (array < padded.dear / 2)] for array in moved])
    return float(np.quantile(every, share)) if every.size else padded.dear


@final
class _Search:
    """Searches for the cheapest choices; it keeps the best so far, shape (N,), and a lower bound on the cost of all."""

    def __init__(self, padded: Padded) -> None:
        self._padded, self.dual = padded, Dual(padded)
        least = padded.use.sum(axis=0) + np.where(padded.allowed, 0.0, np.inf)
        self.best = settled(padded, one_hot(padded, least.argmin(axis=1)[:, None]))[:, 0]
        self._prices = np.zeros(len(padded.use))

    @property
    def cost(self) -> float:
        return float(self._padded.totals(self.best[:, None])[0])

    @property
    def proved(self) -> bool:
        return self.dual.reaches(self.cost)

    def anneal(self, share: float, seed: int) -> bool:
        """Anneals the relaxed choices with costs cut off at a ceiling, and keeps the best choices that are found.

        Args:
            share: the ceiling is at this quantile of the costs, or at the gap between the best choices' cost and the
                lower bound if that is less.
            seed: the seed of the noise from which annealing starts.

        Returns:
            Whether the best choices are cheaper than before.
        """
        before = self.cost
        moved = self.dual.moved()
        ceiling = min(ceiling_of(self._padded, moved, share), before - self.dual.bound)
        shares, prices = annealed(self._padded, moved, ceiling, seed)
        self._take(shares)
        self._prices = self._prices if self._prices.any() else prices
        return self.cost < before

    def prove(self, rounds: int) -> bool:
        """Raises the lower bound on the cost of all choices, and improves on the choices that this points to.

        Args:
            rounds: the most rounds in which the bound is raised.

        Returns:
            Whether more rounds might raise the bound further.
        """
        if len(self._prices):
            self.dual.charge(self._prices)
        rises = self.dual.rise(self.cost, rounds)
        told = self.dual.choices()
        self._take(one_hot(self._padded, told))
        over = self._padded.used(told)[:, 0] - 1.0
        if over.any():
            step = min(self.cost - self.dual.bound, self._padded.dear) / float(over @ over)
            self._prices = np.maximum(self._prices + step * over, 0.0)
        return rises

    def _take(self, shares: FloatArray) -> None:
        padded = self._padded
        if len(self._prices):
            charged = [padded.charged(factor * self._prices) for factor in FACTORS]
            shares = np.concatenate([one_hot(each, bettered(each, settled(each, shares))) for each in charged], axis=2)
        found = bettered(padded, settled(padded, shares))
        self.best = mixed(padded, np.concatenate([self.best[:, None], found], axis=1))


def mixed(padded: Padded, choices: IntArray) -> IntArray:
    """Mixes S sets of choices for a cost graph's N nodes into one, shape (N,), that costs no more than any of them.

    The cheapest set is mixed with the others in turn: where two differ, each node takes the one choice or the other.

    Args:
        padded: the graph as arrays.
        choices: the choice of each node in each set, shape (N, S).

    References:
        Lempitsky, Rother, Roth and Blake, Fusion Moves for Markov Random Field Optimization, 2010.
    """
    order = padded.totals(choices).argsort(kind="stable")
    return functools.reduce(lambda one, two: _best(padded, one, two), [choices[:, place] for place in order])


def _best(padded: Padded, one: IntArray, two: IntArray) -> IntArray:
    """Returns the best mix of two choices: where they differ, each node takes the one or the other."""
    graph = _differences(padded, one, two)
    if not graph.costs:
        return one
    try:
        joint = JointCosts(graph, {})
        _, best = joint.cheapest([])
        taken = joint.complete(best)
    except ValueError:
        reduced = reduce_graph(graph, Blocks())
        taken = reduced.complete(dict.fromkeys(reduced.core.costs, 0))
    found = one.copy()
    for node, place in taken.items():
        found[node] = two[node] if place else one[node]
    both = np.stack([one, found], axis=1)
    return both[:, int(padded.totals(both).argmin())]


def _differences(padded: Padded, one: IntArray, two: IntArray) -> CostGraph:
    """The graph of the nodes whose choices differ, by place: the first choice or the second."""
    costs, edges = {}, {}
    pairs = {int(node): [int(one[node]), int(two[node])] for node in np.flatnonzero(one != two)}
    for node, pair in pairs.items():
        cost, ends = padded.costs[node, pair].copy(), padded.ends(node)
        for end in range(ends.start, ends.stop):
            other = int(padded.other[end])
            if other not in pairs:
                cost += padded.matrices[end][one[other], pair]
            elif other > node:
                edges[node, other] = padded.matrices[end][np.ix_(pairs[other], pair)].T
        costs[node] = cost
    return CostGraph(costs, edges)
