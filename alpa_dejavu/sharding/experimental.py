"""Experimental: the choices of operators by a relaxation and its gradient, in place of an integer linear program.

It is no better than that, the default, in docs/results/slicers.md. `ShardingOptions(solver="relaxed")` asks
for it.

All choices of all nodes have a share each; those of one node add up to 1. With c what choices cost by themselves and W
what each pair of them costs along an edge, shares p cost E(p) = c.p + p.Wp / 2, which is linear in each node's shares.

0. Costs are moved from nodes into edges and on, which changes the cost of no choices. Then each node and each edge has
   a least cost, and their sum is a lower bound.
1. Shares are a softmax of logits, annealed: they follow the natural gradient of E, less their entropy times a
   temperature, as that falls. A memory limit has a price that rises while the limit is overstepped.
2. Rounding by conditional expectations: each node, from the last to the first, takes the choice that costs least with
   the others' shares, so that E doesn't rise. Another start has no shares at all: each takes what costs least with the
   choices so far, which is the best where the bound is tight.
3. Iterated conditional modes: each node takes the choice that costs least with the others' choices, until none changes.

References:
    Kolmogorov, A New Look at Reweighted Message Passing, 2015 (step 0).
    Liu, Simonyan and Yang, DARTS: Differentiable Architecture Search, 2019 (step 1).
    Peterson and Söderberg, A New Method for Mapping Optimization Problems onto Neural Networks, 1989 (step 1).
    Amari, Natural Gradient Works Efficiently in Learning, 1998 (step 1).
    Raghavan, Probabilistic construction of deterministic algorithms, 1988 (step 2).
    Besag, On the Statistical Analysis of Dirty Pictures, 1986 (step 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._ilp import MemoryRow
from alpa_dejavu.sharding._options import INFINITY_COST

__all__ = ["RelaxedChoice", "RelaxedGraph", "annealed", "moved_costs", "settled", "solve_relaxed"]

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.intp]

CEILINGS = (0.25, 0.5, 0.75, 0.9)
"""A start for each: costs above this quantile of the graph's count as it, or small ones would be lost beside them."""
MOVES = 16
"""The number of times that costs are moved through the graph, back and forth."""
STEPS, COLDEST = 100, 1e-4
"""The steps of the gradient, and the last temperature as a share of the first, which is the ceiling."""
STRIDE = 0.5
"""The share of the way to where a node's gradient is zero, all others staying, that is gone at each step."""
NOISE = 0.1
"""How strong the noise on the logits is: 1.0 would count as much as the temperature does."""
PRESSURE = 0.1
"""The share of the ceiling by which a memory limit's price rises in a step in which twice the limit is used."""
_SWEEPS, _ROUNDING = 100, 1e-12


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RelaxedChoice:
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
        """Returns the most by which the best choices can be cheaper than these."""
        return self.cost - self.lower_bound


def solve_relaxed(graph: CostGraph, memory: Sequence[MemoryRow] = (), *, seed: int = 0) -> RelaxedChoice:
    """Returns choices that are cheap, and a lower bound on the cost of any, by the steps above.

    Args:
        graph: the cost of each choice of each node, and of each pair of choices along an edge.
        memory: for each limit the bytes that each choice of some nodes takes, and the most that they may add up to.
        seed: the seed of the noise from which annealing starts.

    Raises:
        ValueError: no choices were found that are possible and meet the limits; there may be some.
    """
    if not graph.costs:
        return RelaxedChoice({}, 0.0, 0.0)
    dear = 2.0 * sum(float(np.abs(array[array < INFINITY_COST]).max(initial=0.0)) for array in graph.arrays) or 1.0
    moved = moved_costs(_finite(graph, dear))
    problem = RelaxedGraph(moved, memory, dear)
    starts = [annealed(problem, share, seed + start) for start, share in enumerate(CEILINGS)]
    choices = [settled(problem, shares) for shares in (np.zeros_like(problem.costs), *starts)]
    best = min(choices, key=problem.energy)
    choice = dict(zip(moved.costs, best.tolist(), strict=True))
    cost = graph.objective(choice)
    if not np.isfinite(cost) or problem.penalty(problem.use[:, problem.first[:-1] + best].sum(axis=1)) > 0:
        raise ValueError("no sharding was found that meets the memory budget per device; solver='ilp' finds any")
    return RelaxedChoice(choice, cost, min(cost, sum(float(array.min()) for array in moved.arrays)))


def _finite(graph: CostGraph, dear: float) -> CostGraph:
    """Lowers costs of INFINITY_COST and more to `dear`, and infinite ones to a cost above that of all choices."""
    forbidden = dear * (len(graph.arrays) + 1)

    def finite(costs: FloatArray) -> FloatArray:
        capped = np.where(costs >= INFINITY_COST, np.minimum(costs, dear), costs)
        return np.where(np.isinf(costs), forbidden, capped)

    return CostGraph(
        {node: finite(graph.costs[node]) for node in sorted(graph.costs)},
        {edge: finite(matrix) for edge, matrix in graph.edges.items()},
    )


def moved_costs(graph: CostGraph) -> CostGraph:
    """Moves finite costs between a graph's nodes and edges such that no choices' cost changes, and least costs rise.

    Each node in turn, from the last to the first and then back, divides its costs among its edges to nodes that are to
    come, and each edge hands on to that node the least that it costs with each of the node's choices.
    """
    costs, edges = dict(graph.costs), dict(graph.edges)
    for _ in range(MOVES):
        for ahead in (0, 1):  # the place in an edge of the node that is to come
            towards: dict[int, list[tuple[int, int]]] = {node: [] for node in costs}
            for edge in edges:
                towards[edge[1 - ahead]].append(edge)
            for node in sorted(costs, reverse=ahead == 0):
                for edge in towards[node]:
                    matrix = edges[edge] + np.expand_dims(costs[node] / len(towards[node]), ahead)
                    least = matrix.min(axis=1 - ahead)
                    costs[edge[ahead]] = costs[edge[ahead]] + least
                    edges[edge] = matrix - np.expand_dims(least, 1 - ahead)
                if towards[node]:
                    costs[node] = np.zeros_like(costs[node])
    return CostGraph(costs, edges)


@final
class RelaxedGraph:
    """A cost graph as arrays: the C choices of all N nodes one after another, and R memory limits.

    Attributes:
        first: node n has the choices first[n] to first[n + 1] - 1, shape (N + 1,).
        owner: the node of each choice, shape (C,).
        costs: c, what each choice costs by itself, shape (C,).
        pairs: W, what each pair of choices costs along an edge, shape (C, C), symmetric.
        near: the rows of `pairs` that are each node's.
        use: the share of each limit that each choice takes, shape (R, C).
        dear: a cost above all differences between choices that are allowed.
    """

    def __init__(self, graph: CostGraph, memory: Sequence[MemoryRow], dear: float) -> None:
        self.dear = dear
        sizes = [len(cost) for cost in graph.costs.values()]
        self.first: IntArray = np.cumsum([0, *sizes])
        self.owner: IntArray = np.repeat(np.arange(len(sizes)), sizes)
        self.costs: FloatArray = np.concatenate(list(graph.costs.values()))
        begin = dict(zip(graph.costs, self.first.tolist(), strict=False))
        half = csr_matrix((len(self.owner), len(self.owner)))
        if graph.edges:
            values = np.concatenate([matrix.ravel() for matrix in graph.edges.values()])
            corners = [np.array([[begin[a]], [begin[b]]]) for a, b in graph.edges]
            inside = [np.indices(matrix.shape).reshape(2, -1) for matrix in graph.edges.values()]
            half = csr_matrix((values, np.concatenate([*map(np.add, corners, inside)], axis=1)), half.shape)
        self.pairs = (half + half.T).tocsr()
        self.near = [self.pairs[start:end] for start, end in zip(self.first, self.first[1:], strict=False)]
        self.use: FloatArray = np.zeros((len(memory), len(self.owner)))
        for row, (bytes_of, limit) in zip(self.use, memory, strict=True):
            for node, num_bytes in bytes_of.items():
                row[begin[node] : begin[node] + len(num_bytes)] = num_bytes / limit

    def penalty(self, used: FloatArray) -> FloatArray:
        """Returns what it costs to overstep memory limits, given the used share of each, shape (R, ...)."""
        over = np.maximum(used - (1.0 + _ROUNDING), 0.0)  # sums of bytes are rounded
        return np.asarray(self.dear * len(self.near) * over.sum(axis=0))

    def energy(self, choices: IntArray) -> float:
        """Returns E, with the penalty for memory, of the choice of each node, shape (N,)."""
        shares = np.zeros(len(self.owner))
        shares[self.first[:-1] + choices] = 1.0
        return float(self.costs @ shares + shares @ (self.pairs @ shares) / 2 + self.penalty(self.use @ shares))

    def softmax(self, logits: FloatArray) -> FloatArray:
        """Returns shares, shape (C,), that add up to 1 for each node."""
        raised = np.exp(logits - np.maximum.reduceat(logits, self.first[:-1])[self.owner])
        return np.asarray(raised / np.add.reduceat(raised, self.first[:-1])[self.owner])


def annealed(problem: RelaxedGraph, share: float, seed: int) -> FloatArray:
    """Anneals the shares of C choices, shape (C,), until one choice of each node has almost all.

    Logits take a step by the gradient with regard to the shares (a natural gradient), so that no choice is lost because
    its share is small. Memory limits are kept by an augmented Lagrangian.

    Args:
        problem: the cost graph.
        share: the quantile, from 0 to 1, of the costs that are neither zero nor forbidden at which costs are cut off.
        seed: the seed of the noise on the logits.
    """
    every = np.concatenate([problem.costs, problem.pairs.data])
    every = every[(every > _ROUNDING * problem.dear) & (every < problem.dear / 2)]
    ceiling = float(np.quantile(every, share)) if every.size else problem.dear
    costs, pairs = np.minimum(problem.costs, ceiling), problem.pairs.minimum(ceiling)
    noise = NOISE * np.random.default_rng(seed).gumbel(size=len(costs))
    logits, shares = noise, problem.softmax(noise)
    prices = np.zeros(len(problem.use))
    for temperature in ceiling * np.geomspace(1.0, COLDEST, STEPS):
        over = problem.use @ shares - 1.0
        prices = np.maximum(prices + PRESSURE * ceiling * over, 0.0)
        gradient = costs + pairs @ shares + (prices + ceiling * np.maximum(over, 0.0)) @ problem.use
        logits = logits + STRIDE * (noise - gradient / temperature - logits)
        shares = problem.softmax(logits)
    return shares


def settled(problem: RelaxedGraph, shares: FloatArray) -> IntArray:
    """Rounds the shares of C choices, shape (C,), to a choice of each of N nodes that no node alone can better.

    Without memory limits the choices, shape (N,), cost no more than the shares.
    """
    shares, used = shares.copy(), problem.use @ shares
    choices = np.full(len(problem.near), -1, dtype=np.intp)
    for _ in range(_SWEEPS):
        before = choices.copy()
        for node, near in reversed(list(enumerate(problem.near))):
            own = slice(problem.first[node], problem.first[node + 1])
            without = used - problem.use[:, own] @ shares[own]
            local = problem.costs[own] + near @ shares + problem.penalty(without[:, None] + problem.use[:, own])
            best = local.argmin()
            if choices[node] < 0 or local[best] < local[choices[node]] - _ROUNDING * problem.dear:
                choices[node] = best
                shares[own] = np.arange(len(local)) == best
                used = without + problem.use[:, own][:, best]
        if (choices == before).all():
            break
    return choices
