"""All-reduces as programs: which messages each worker sends and waits for.

In a simulation what is summed doesn't travel in the messages: each worker lays its part on the world's board before it
sends, and all find the same sum there, added in the order of the workers' numbers, whatever the algorithm. Between real
workers, which have no common board, it does travel, and is added in the order of the ring or the tree.

References:
    Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Sequence
from typing import TypeAlias, final

import numpy as np

from alpa_dejavu.playground._arrays import Vector
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._world import Exchange, Program, Subprogram, Worker, World
from alpa_dejavu.problem import checks

ALGORITHMS = ("ring", "tree", "hierarchical")


def mean(vectors: Sequence[Vector]) -> Vector:
    """Returns the mean of vectors, added one after the other in their order."""
    total = vectors[0].copy()
    for vector in vectors[1:]:
        total += vector
    return total / np.float32(len(vectors))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LocalParameters:
    """Parameters that a worker came to, and of how many samples gradients were computed on the way."""

    values: Vector
    samples: float | Vector


_Part: TypeAlias = "Vector | WorkerGradient | LocalParameters"


def mean_gradient(parts: Sequence[WorkerGradient | LocalParameters]) -> Vector:
    """Returns the mean of gradients, or of parameters, over all their samples; of a parameter, over those of workers
    that had it, and where nobody had it the plain one.
    """
    vectors, samples = [part.values for part in parts], [part.samples for part in parts]
    if all(np.ndim(counted) == 0 and counted == samples[0] for counted in samples):
        return mean(vectors)
    total, count = np.zeros_like(vectors[0]), np.zeros_like(vectors[0])
    for counted, vector in zip(samples, vectors, strict=True):
        total += np.float32(counted) * vector
        count += np.float32(counted)
    return np.divide(total, count, out=mean(vectors), where=count > 0)


def all_reduce(
    worker: Worker, tag: Hashable, part: _Part, algorithm: str, among: Sequence[int] | None = None
) -> Subprogram[Vector]:
    """Sends and receives what an all-reduce takes (`yield from`), by one of `ALGORITHMS`, under a tag of its own;
    returns the mean. Where one is lost meanwhile, those that have begun and wait for it do so for ever.

    Args:
        part: the worker's part: a vector, or a gradient or parameters, whose mean is that over samples.
        among: the workers that take part; None: all that are there.
    """
    world = worker.world
    if among is None:  # who begins after a loss neither adds to those parts that were laid before nor takes messages
        tag = tag, tuple(number for number in range(world.size) if not world.present[number])
    members = world.live if among is None else among
    if world.board_is_shared:
        return (yield from _on_board(worker, tag, part, algorithm, members))
    vector = part if isinstance(part, np.ndarray) else part.values
    carried = np.array_split(vector, len(members)) if algorithm == "ring" else [vector]
    yield from _messages(worker, tag, algorithm, members, carried)
    return np.concatenate(carried) / np.float32(len(members))


def _on_board(worker: Worker, tag: Hashable, part: _Part, algorithm: str, members: Sequence[int]) -> Subprogram[Vector]:
    board = worker.world.board
    parts, left = board.setdefault((tag, "parts"), ({}, []))
    parts[worker.number] = part
    if isinstance(part, WorkerGradient):
        _ = part.values  # by now all that wait with it are known, too, and are computed side by side
    try:
        yield from _messages(worker, tag, algorithm, members, None)
    except GeneratorExit:  # the worker is lost, or its program cancelled
        board.pop((tag, "parts"), None)
        raise
    if not left:
        every = [parts[number] for number in sorted(parts)]
        left.append(mean(every) if isinstance(part, np.ndarray) else mean_gradient(every))
    left.append(None)
    if len(left) > len(parts):
        board.pop((tag, "parts"), None)
    total: Vector = left[0]
    return total


def _messages(worker: Worker, tag: Hashable, algorithm: str, members: Sequence[int], carried: list[Vector] | None
              ) -> Program:  # fmt: skip
    """Sends and receives; what is carried, parts of a vector, is summed up in place."""
    if algorithm == "ring":
        yield from _ring_passes(worker, tag, members, worker.world.num_bytes / len(members), 2, carried)
    elif algorithm == "tree":
        yield from _tree(worker, tag, members, carried)
    else:
        yield from _two_levels(worker, tag, members)


def check_algorithm(owner: str, algorithm: str) -> None:
    checks.one_of(owner, "algorithm", algorithm, ALGORITHMS)


def check_hosts(world: World, algorithm: str) -> None:
    """Raises ValueError unless hosts have as many workers each, where the algorithm needs that."""
    if algorithm == "hierarchical":
        _by_host(world, range(world.size))


def _ring_passes(worker: Worker, tag: Hashable, ring: Sequence[int], num_bytes: float, passes: int,
                 carried: list[Vector] | None = None) -> Program:  # fmt: skip
    """Rounds, n - 1 a pass, in which each sends to the next: first parts add up, then sums go around."""
    place, count = ring.index(worker.number), len(ring)
    for step in range(passes * (count - 1)):
        out, into = (place - step) % count, (place - step - 1) % count
        worker.send(ring[(place + 1) % count], (tag, step), None if carried is None else carried[out], num_bytes)
        (message,) = yield worker.receive((tag, step))
        if carried is not None:
            carried[into] = carried[into] + message.payload if step < count - 1 else message.payload


def _tree(worker: Worker, tag: Hashable, members: Sequence[int], carried: list[Vector] | None = None) -> Program:
    """Up a binary tree to the first one, and down again."""
    place, num_bytes = members.index(worker.number), worker.world.num_bytes
    children = [members[n] for n in (2 * place + 1, 2 * place + 2) if n < len(members)]
    if children:
        for message in (yield worker.receive((tag, "up"), len(children))):
            if carried is not None:
                carried[0] = carried[0] + message.payload
    if place:
        worker.send(members[(place - 1) // 2], (tag, "up"), carried and carried[0], num_bytes)
        (message,) = yield worker.receive((tag, "down"))
        if carried is not None:
            carried[0] = message.payload
    for child in children:
        worker.send(child, (tag, "down"), carried and carried[0], num_bytes)


def _two_levels(worker: Worker, tag: Hashable, members: Sequence[int]) -> Program:
    """A reduce-scatter within each host, rings of the hosts for each device's share, an all-gather within."""
    groups = _by_host(worker.world, members)
    mine = groups[worker.world.hosts[worker.number]]
    place, num_bytes = mine.index(worker.number), worker.world.num_bytes / len(mine)
    across = [group[place] for group in groups.values()]
    yield from _ring_passes(worker, (tag, "scatter"), mine, num_bytes, 1)
    yield from _ring_passes(worker, (tag, "across"), across, num_bytes / len(across), 2)
    yield from _ring_passes(worker, (tag, "gather"), mine, num_bytes, 1)


def _by_host(world: World, members: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for number in sorted(members, key=lambda n: world.hosts[n]):
        groups.setdefault(world.hosts[number], []).append(number)
    counts = set(map(len, groups.values()))
    if len(counts) > 1:
        raise ValueError(f"all-reduce: hosts have {sorted(counts)} workers, but a hierarchical one needs as many on "
                         "each; choose algorithm='ring'")  # fmt: skip
    return groups


@final
@dataclasses.dataclass(frozen=True)
class AllReduce(Exchange):
    """Each step all workers update by the mean of their gradients.

    Attributes:
        algorithm: "ring", "tree", or "hierarchical": within hosts, between them, and within again.
    """

    algorithm: str = "ring"

    def __post_init__(self) -> None:
        check_algorithm("all-reduce", self.algorithm)

    def run(self, worker: Worker) -> Program:
        check_hosts(worker.world, self.algorithm)
        for step in itertools.count():
            gradient = yield worker.compute()
            total = yield from all_reduce(worker, ("gradients", step), gradient, self.algorithm)
            worker.update(total, gradient)


@final
@dataclasses.dataclass(frozen=True)
class LocalSteps(Exchange):
    """Each worker takes some steps of its own, then all go on from the mean of their parameters (local SGD), over
    the samples that each computed gradients of; of a parameter, over those of workers that hadn't left it out.

    Attributes:
        steps: the steps between two means; 1 is synchronous, for plain gradient descent.

    References:
        Stich, Local SGD Converges Fast and Communicates Little, ICLR 2019.
    """

    steps: int = 8
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        checks.count("local steps", "steps", self.steps)
        check_algorithm("local steps", self.algorithm)

    def run(self, worker: Worker) -> Program:
        check_hosts(worker.world, self.algorithm)
        for number in itertools.count():
            samples: float | Vector = 0
            for _ in range(self.steps):
                gradient = yield worker.compute()
                worker.update(gradient.values, gradient)
                samples = samples + gradient.samples
            came_to = LocalParameters(worker.params, samples)
            total = yield from all_reduce(worker, ("parameters", number), came_to, self.algorithm)
            worker.adopt(total, worker.version)
