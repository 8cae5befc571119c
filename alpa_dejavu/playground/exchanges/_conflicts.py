"""Which samples' updates get in each other's way, and groups of samples for workers.

A group is an array of positions in a round's samples, in ascending order: they are applied in that order.

References:
    Aydin, Bateni and Mirrokni, Distributed Balanced Partitioning via Linear Embedding, WSDM 2016.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

__all__ = ["components", "cosines", "cut", "dealt", "embedded", "similar"]

Group = NDArray[np.int64]


def components(coordinates: NDArray[np.int64]) -> list[Group]:
    """Returns the connected components of samples that depend on a common parameter.

    Args:
        coordinates: which parameters each sample depends on, shape (samples, indices).
    """
    samples = np.repeat(np.arange(len(coordinates)), coordinates.shape[1])
    ends = samples, len(coordinates) + coordinates.ravel()
    size = len(coordinates) + int(coordinates.max()) + 1
    _, parts = connected_components(coo_matrix((np.ones(len(samples)), ends), (size, size)), directed=False)
    parts = parts[: len(coordinates)]
    return [np.flatnonzero(parts == part) for part in np.unique(parts)]


def dealt(parts: Sequence[Group], workers: int) -> list[Group]:
    """Returns for each worker its parts: the largest first, each to the worker with the fewest samples so far."""
    groups = [np.zeros(0, np.int64)] * workers
    for part in sorted(parts, key=len, reverse=True):
        least = min(range(workers), key=lambda worker: len(groups[worker]))
        groups[least] = np.sort(np.concatenate([groups[least], part]))
    return groups


def cosines(gradients: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns how much any two of some gradients, shape (samples, P), interfere: the size of their cosine, shape
    (samples, samples), 0 on the diagonal.
    """
    exact = gradients.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    unit = exact / np.where(norms > 0, norms, 1.0)
    found = np.minimum(np.abs(unit @ unit.T), 1.0)
    np.fill_diagonal(found, 0.0)
    return np.asarray((found + found.T) / 2)


def cut(conflict: NDArray[np.float64], groups: Sequence[Group]) -> float:
    """Returns the conflict between samples of different groups, each pair once."""
    return float(conflict.sum() - sum(conflict[np.ix_(group, group)].sum() for group in groups)) / 2


def similar(conflict: NDArray[np.float64], workers: int) -> list[Group]:
    """Returns groups of equal size, one after the other: each begins with the sample that is in conflict with the most
    of those that are left, and takes the one with the most conflict with the group.
    """
    left, groups = np.ones(len(conflict), bool), list[Group]()
    for size in _sizes(len(conflict), workers):
        group = list[int]()
        pull = conflict[:, left].sum(axis=1)
        for _ in range(size):
            group.append(int(np.argmax(np.where(left, pull, -1.0))))
            left[group[-1]] = False
            pull = conflict[:, group].sum(axis=1)
        groups.append(np.sort(np.array(group, np.int64)))
    return groups


def embedded(conflict: NDArray[np.float64], workers: int) -> list[Group]:
    """Returns groups of equal size by linear embedding: samples are put on a line, those in conflict near each other,
    by clusters of clusters; the line is cut; then samples of two neighbouring groups change places while that helps.
    """
    line = np.arange(len(conflict))
    if len(conflict) > 1:
        line = leaves_list(linkage(squareform(1.0 - conflict, checks=False), "average", optimal_ordering=True))
    groups = [group.copy() for group in np.split(line, np.cumsum(_sizes(len(conflict), workers))[:-1])]
    for first, second in itertools.pairwise(groups):
        for _ in range(len(first)):
            here, there = (conflict[:, group].sum(axis=1) for group in (first, second))
            gains = (there - here)[first][:, None] + (here - there)[second] - 2 * conflict[np.ix_(first, second)]
            if not gains.size or gains.max() <= 1e-12:
                break
            a, b = np.unravel_index(np.argmax(gains), gains.shape)
            first[a], second[b] = second[b], first[a]
    return [np.sort(group) for group in groups]


def _sizes(samples: int, workers: int) -> list[int]:
    return [len(part) for part in np.array_split(np.arange(samples), workers)]
