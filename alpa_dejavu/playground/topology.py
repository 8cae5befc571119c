"""Who talks to whom in each round of gossip, and with which weights."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, final

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = [
    "TOPOLOGIES", "Exponential", "Graph", "Grid", "OnePeer", "RandomPeers", "Ring", "RoundMixing", "Star", "Topology",
    "topology",
]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True, eq=False)
class RoundMixing:
    """One round's M messages among n workers: for each its sender, its receiver, and its weight at the receiver. No
    worker sends to itself, and no pair is there twice; a receiver's own parameters get what its weights lack to 1.
    """

    sources: Int[np.ndarray, " M"]
    targets: Int[np.ndarray, " M"]
    weights: Float[np.ndarray, " M"]

    def matrix(self, size: int) -> Float[np.ndarray, "n n"]:
        """Returns the mixing matrix: in row i what worker i takes of each worker's parameters."""
        weights = np.zeros((size, size))
        weights[self.targets, self.sources] = self.weights
        weights[np.diag_indices(size)] = 1 - weights.sum(axis=1)
        return weights


class Topology(abc.ABC):
    """A rule of who sends to whom; `alpa_dejavu.playground.testing.check_topology` says if it keeps the mean."""

    @abc.abstractmethod
    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        """Returns the messages of a round, by its number from 0, with weights that make a doubly stochastic matrix; the
        generator has random numbers of this round, the same for all workers.
        """


def _metropolis(pairs: Iterable[tuple[int, int]], size: int) -> RoundMixing:
    """Weights of Metropolis and Hastings for undirected pairs: 1 / (1 + the larger number of neighbours)."""
    both = sorted({pair for a, b in pairs if a != b for pair in ((a, b), (b, a))})
    sources, targets = np.array(both, np.int64).reshape(-1, 2).T
    degree = np.bincount(sources, minlength=size)
    return RoundMixing(sources, targets, 1.0 / (1 + np.maximum(degree[sources], degree[targets])))


def _shifted(order: Int[np.ndarray, " n"], shifts: Iterable[int]) -> RoundMixing:
    """Each worker sends to those so many places behind it in an order, all with equal weights."""
    ways = sorted({shift % len(order) for shift in shifts} - {0})
    sources = np.tile(order, len(ways))
    targets = np.concatenate([order[:0], *(np.roll(order, -shift) for shift in ways)])
    return RoundMixing(sources, targets, np.full(len(sources), 1.0 / (len(ways) + 1)))


@final
@dataclasses.dataclass(frozen=True)
class Ring(Topology):
    """A ring: each worker talks to the two beside it."""

    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        return _metropolis(((n, (n + 1) % size) for n in range(size)), size)


@final
@dataclasses.dataclass(frozen=True)
class Grid(Topology):
    """A grid, as square as the number of workers allows, closed to a torus."""

    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        places = np.arange(size).reshape(max(rows for rows in range(1, math.isqrt(size) + 1) if size % rows == 0), -1)
        pairs = [(places, np.roll(places, -1, axis)) for axis in (0, 1)]
        return _metropolis(np.concatenate([np.stack(pair, -1).reshape(-1, 2) for pair in pairs]).tolist(), size)


@final
@dataclasses.dataclass(frozen=True)
class Star(Topology):
    """A star: all talk to worker 0."""

    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        return _metropolis(((0, n) for n in range(1, size)), size)


@final
@dataclasses.dataclass(frozen=True)
class Exponential(Topology):
    """Each worker sends to those 1, 2, 4, 8 ... places behind it.

    References:
        Ying and others, Exponential Graph is Provably Efficient for Decentralized Deep Training, NeurIPS 2021.
    """

    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        return _shifted(np.arange(size), (2**k for k in range(max(size - 1, 1).bit_length()) if 2**k < size))


@final
@dataclasses.dataclass(frozen=True)
class OnePeer(Topology):
    """Each worker sends to one other: 1 place behind it, in the next round 2, then 4, 8 ..., and again.

    References:
        Ying and others, Exponential Graph is Provably Efficient for Decentralized Deep Training, NeurIPS 2021.
    """

    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        ways = max((size - 1).bit_length(), 1)
        return _shifted(np.arange(size), [2 ** (number % ways)])


@final
@dataclasses.dataclass(frozen=True)
class RandomPeers(Topology):
    """Each round each worker sends to `peers` random others, and gathers from as many.

    References:
        De Vos and others, Epidemic Learning: Boosting Decentralized Learning with Randomized Communication, 2023.
    """

    peers: int = 2

    def __post_init__(self) -> None:
        checks.count("random peers", "peers", self.peers)

    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        shifts = generator.permutation(np.arange(1, size))[: self.peers]
        return _shifted(generator.permutation(size), shifts.tolist())


@final
@dataclasses.dataclass(frozen=True)
class Graph(Topology):
    """A graph of one's own: the given pairs of workers talk to each other; all must be reached over them."""

    pairs: tuple[tuple[int, int], ...]

    def mixing(self, number: int, size: int, generator: np.random.Generator) -> RoundMixing:
        return _of_graph(self.pairs, size)


@functools.cache
def _of_graph(pairs: tuple[tuple[int, int], ...], size: int) -> RoundMixing:
    for worker in sum(pairs, ()):
        if not 0 <= worker < size:
            raise ValueError(f"graph: pairs has worker {worker}, but must have those of 0..{size - 1}; name one")
    mixing = _metropolis(pairs, size)
    reached = {0, *breadth_first_order(coo_array(mixing.matrix(size)), 0, return_predecessors=False).tolist()}
    if lost := set(range(size)) - reached:
        raise ValueError(f"graph: pairs is not connected, but must be: none lead from worker 0 to {min(lost)}; add "
                         "some")  # fmt: skip
    return mixing


TOPOLOGIES: dict[str, type[Topology]] = {
    "ring": Ring, "grid": Grid, "star": Star, "exponential": Exponential, "one-peer": OnePeer, "random": RandomPeers,
}  # fmt: skip


def topology(choice: str | Topology) -> Topology:
    """Returns the topology of a name of `TOPOLOGIES`, or the given one.

    >>> topology("random")
    RandomPeers(peers=2)
    """
    return resolve("topology", choice, TOPOLOGIES, Topology)  # type: ignore[type-abstract]
