"""The best of all mixtures of some choices of a cost graph's nodes.

References:
    Lempitsky, Rother, Roth and Blake, Fusion Moves for Markov Random Field Optimization, 2010.
"""

from __future__ import annotations

import functools

import numpy as np

from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._eliminate import reduce_graph
from alpa_dejavu.sharding._graph import CostGraph
from alpa_dejavu.sharding._joint import JointCosts
from alpa_dejavu.sharding.experimental.padded import IntArray, Padded


def mixed(padded: Padded, choices: IntArray) -> IntArray:
    """The cheapest of S choices, mixed with the next ones in turn, shape (N,); it costs no more than any of them.

    Args:
        padded: the graph.
        choices: of all nodes, shape (N, S).
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
