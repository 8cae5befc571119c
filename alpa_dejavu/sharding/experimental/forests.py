"""Choices bettered for many nodes at once: those of a forest are chosen anew together, exactly, the others staying.

References:
    Hamze and de Freitas, From Fields to Trees, 2004.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import final

import numpy as np

from alpa_dejavu.sharding.experimental.padded import FloatArray, IntArray, Padded

_ROUNDS = 20
_ROUNDING = 1e-12


@final
@dataclasses.dataclass(frozen=True)
class Forest:
    """A forest within a cost graph: nodes that the edges between them make into trees.

    Attributes:
        nodes: the indices of the nodes, each after its parent.
        towards: for each node the index of its end of the edge to its parent; -1 for the root of a tree.
    """

    nodes: tuple[int, ...]
    towards: tuple[int, ...]


def bettered(padded: Padded, choices: IntArray) -> IntArray:
    """Improves choices for all nodes of a cost graph, by choosing anew for one forest of nodes at a time.

    A forest is a set of nodes among which edges close no ring, so the best choices for it, given all others, are found
    exactly. That goes on until no choices get cheaper.

    Args:
        padded: the graph as arrays, with N nodes.
        choices: S sets of choices, each for all nodes, shape (N, S); they are improved independently.
    """
    forests = _covering(padded)
    totals = padded.totals(choices)
    for _ in range(_ROUNDS):
        before = totals
        for forest in forests:
            tried = _anew(padded, forest, choices)
            cost = padded.totals(tried)
            better = cost < totals - _ROUNDING * padded.dear
            choices, totals = np.where(better, tried, choices), np.where(better, cost, totals)
        if (totals == before).all():
            break
    return choices


def _covering(padded: Padded) -> list[Forest]:
    """Forests that have all nodes between them, grown from nodes that none had before, those of few edges first."""
    degrees = np.diff(padded.first)
    left = np.ones(len(padded.nodes), dtype=np.bool_)
    found = []
    while left.any():
        forest = _grown(padded, np.lexsort((degrees, ~left)).tolist())
        left[list(forest.nodes)] = False
        found.append(forest)
    return found


def _grown(padded: Padded, order: Iterable[int]) -> Forest:
    """The nodes, in their order, that close no ring with those before."""
    group: dict[int, int] = {}

    def root(node: int) -> int:
        while group[node] != node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for node in order:
        near = [root(other) for other in padded.other[padded.ends(node)].tolist() if other in group]
        if len(set(near)) == len(near):
            group[node] = node
            for other in near:
                group[other] = node
    return _rooted(padded, group)


def _rooted(padded: Padded, members: Iterable[int]) -> Forest:
    """The forest of some nodes, each tree from one of its nodes on."""
    inside, towards = set(members), dict[int, int]()
    for start in sorted(inside):
        if start in towards:
            continue
        towards[start], stack = -1, [start]
        while stack:
            node = stack.pop()
            ends = padded.ends(node)
            for end in range(ends.start, ends.stop):
                other = int(padded.other[end])
                if other in inside and other not in towards:
                    towards[other] = int(padded.reverse[end])
                    stack.append(other)
    return Forest(tuple(towards), tuple(towards.values()))


def _anew(padded: Padded, forest: Forest, choices: IntArray) -> IntArray:
    """The best choices of the forest's nodes, given those of the others."""
    own = _beside(padded, forest, choices)
    answers: dict[int, IntArray] = {}
    for node, end in zip(reversed(forest.nodes), reversed(forest.towards), strict=True):
        if end >= 0:
            each = own[node][:, None, :] + padded.matrices[end]
            answers[node] = each.argmin(axis=2)
            own[padded.other[end]] += each.min(axis=2)
    found, columns = choices.copy(), np.arange(choices.shape[1])
    for node, end in zip(forest.nodes, forest.towards, strict=True):
        found[node] = answers[node][columns, found[padded.other[end]]] if end >= 0 else own[node].argmin(axis=1)
    return found


def _beside(padded: Padded, forest: Forest, choices: IntArray) -> FloatArray:
    """Returns the cost of each choice of the forest's nodes, given the choices outside of it, shape (N, S, K)."""
    inside = np.zeros(len(padded.nodes), dtype=np.bool_)
    inside[list(forest.nodes)] = True
    owner = padded.owner
    ends = np.flatnonzero(inside[owner] & ~inside[padded.other])
    found = np.repeat(padded.costs[:, None, :], choices.shape[1], axis=1)
    if len(ends):
        near, begins = np.unique(owner[ends], return_index=True)
        found[near] += np.add.reduceat(padded.matrices[ends[:, None], choices[padded.other[ends]]], begins, axis=0)
    return found
