"""Samples that share no parameter are applied at the same time, on several workers.

A group is an array of positions in a round's samples, in ascending order: they are applied in that order.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from alpa_dejavu.playground._arrays import Coordinates, Rows, Vector, Vectors
from alpa_dejavu.playground._world import Exchange, Program, Subprogram, Worker
from alpa_dejavu.playground.exchanges._server import serves
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from jaxtyping import Float


def components(coordinates: Coordinates) -> list[Rows]:
    """Returns the connected components of samples that depend on a common parameter."""
    samples = np.repeat(np.arange(len(coordinates)), coordinates.shape[1])
    ends = samples, len(coordinates) + coordinates.ravel()
    size = len(coordinates) + int(coordinates.max()) + 1
    _, parts = connected_components(coo_matrix((np.ones(len(samples)), ends), (size, size)), directed=False)
    parts = parts[: len(coordinates)]
    return [np.flatnonzero(parts == part) for part in np.unique(parts)]


def dealt(parts: Sequence[Rows], workers: int) -> list[Rows]:
    """Returns for each worker its parts: the largest first, each to the worker with the fewest samples so far."""
    groups = [np.zeros(0, np.int64)] * workers
    for part in sorted(parts, key=len, reverse=True):
        least = min(range(workers), key=lambda worker: len(groups[worker]))
        groups[least] = np.sort(np.concatenate([groups[least], part]))
    return groups


def cosines(gradients: Vectors) -> Float[np.ndarray, "samples samples"]:
    """Returns how much any two of some gradients interfere: the size of their cosine, 0 on the diagonal."""
    exact = gradients.astype(np.float64)
    norms = np.linalg.norm(exact, axis=1, keepdims=True)
    unit = exact / np.where(norms > 0, norms, 1.0)
    sizes = np.minimum(np.abs(unit @ unit.T), 1.0)
    np.fill_diagonal(sizes, 0.0)
    return np.asarray((sizes + sizes.T) / 2)


def similar(conflict: Float[np.ndarray, "samples samples"], workers: int) -> list[Rows]:
    """Returns groups of equal size, one after the other: each begins with the sample that is in conflict with the most
    of those that are left, and takes the one with the most conflict with the group.
    """
    left, groups = np.ones(len(conflict), bool), list[Rows]()
    for part in np.array_split(np.arange(len(conflict)), workers):
        group = list[int]()
        pull = conflict[:, left].sum(axis=1)
        for _ in part:
            group.append(int(np.argmax(np.where(left, pull, -1.0))))
            left[group[-1]] = False
            pull = conflict[:, group].sum(axis=1)
        groups.append(np.sort(np.array(group, np.int64)))
    return groups


@final
@dataclasses.dataclass(frozen=True)
class Cyclades(Exchange):
    """Each round a server takes a batch for each worker, and applies all samples one by one: those that depend on a
    common parameter, directly or through others, on one worker; then it gathers the parameters that changed. The
    result is that of one worker which applies all samples in the order of workers and batches, to the bit.

    Where all samples of a round are one component, the history's notes say so, and workers get groups of equal size;
    a parameter that several groups changed goes on by the mean of their changes. Groups of least conflict need the
    gradient of each sample first: workers compute them for a batch's seconds, and send them all. The seconds in which
    the server finds groups aren't counted. On our sparse problem such groups lower the loss of a round, but random ones
    have twice the rounds in that time; where gradients are alike within a class, they are worse than random ones.

    A sparse problem says which parameters a sample depends on (`Problem.coordinates`); a changed parameter is sent as
    two numbers. A sample takes its share of a batch's seconds, which flatters devices that need large batches.

    Attributes:
        groups: where there is one component: "random"; or "cosine", samples whose gradients have large cosines
            together, greedily.

    References:
        Pan, Lam, Tu, Papailiopoulos, Zhang, Jordan, Ramchandran, Re and Recht, Cyclades: Conflict-free Asynchronous
        Machine Learning, NIPS 2016.
    """

    groups: str = "random"
    server: int = 0

    def __post_init__(self) -> None:
        checks.one_of("cyclades", "groups", self.groups, ("random", "cosine"))

    def run(self, worker: Worker) -> Program:
        if worker.world.learner.keeps(worker.state):
            raise ValueError("cyclades: the job's optimizer keeps moments or counts steps, but must not where samples "
                             "are applied one by one; choose plain gradient descent")  # fmt: skip
        if serves(worker, self.server):
            worker.spawn(self._serve(worker))
        return self._apply(worker)

    def _apply(self, worker: Worker) -> Program:
        world = worker.world
        while not worker.finished:
            (message,) = yield worker.receive("samples")
            rows, answer = message.payload
            if answer[0] == "gradients":
                yield worker.sleep(world.compute_seconds(worker.number, len(rows)))
                worker.send(self.server, answer, None, len(rows) * world.num_bytes)
                continue
            gradient = yield worker.compute(rows)
            worker.update_each(gradient)
            worker.send(self.server, answer, worker.params, _bytes_of(worker, [_touched(worker, rows)]))
            (message,) = yield worker.receive("params")
            worker.adopt(*message.payload)

    def _serve(self, worker: Worker) -> Program:
        world, model = worker.world, worker.replica()
        for number in itertools.count():
            if worker.finished:
                return
            members = world.live
            batches = [world.learner.batch(member) for member in members]
            groups = yield from self._grouped(worker, model.params, batches, number)
            changed = yield from _answers(worker, groups, ("changed", number))
            touched = [_touched(worker, groups[member]) for member in changed]
            model.adopt(_merged(model.params, [*changed.values()], touched), model.version + 1)
            world.shown = model.params
            for member in world.live:
                worker.send(member, "params", (model.params, model.version), _bytes_of(worker, touched))

    def _grouped(
        self, worker: Worker, params: Vector, batches: Sequence[Rows], number: int
    ) -> Subprogram[dict[int, Rows]]:
        """Returns for each worker the samples that it applies."""
        world = worker.world
        members, rows = world.live, np.concatenate(batches)
        coordinates = world.learner.coordinates(rows)
        parts = [np.arange(len(rows))] if coordinates is None else components(coordinates)
        if len(parts) > 1 or len(members) == 1:
            groups = dealt(parts, len(members))
        else:
            world.recorder.note(f"cyclades: all samples of a round are one component, as each depends on a parameter "
                                f"of another; workers get groups of equal size, {self.groups}")  # fmt: skip
            if self.groups == "random":
                shuffled = world.generator(number).permutation(len(rows))
                groups = [np.sort(part) for part in np.array_split(shuffled, len(members))]
            else:
                yield from _answers(worker, dict(zip(members, batches, strict=True)), ("gradients", number))
                groups = similar(cosines(world.learner.per_sample(params, rows)), len(members))
        return {member: rows[group] for member, group in zip(members, groups, strict=True)}


def _answers(worker: Worker, rows: dict[int, Rows], answer: tuple[str, int]) -> Subprogram[dict[int, Any]]:
    """Sends each worker samples, four bytes each, and returns what those that stay there answer."""
    for member, some in rows.items():
        worker.send(member, "samples", (some, answer), 4.0 * len(some))
    staying = set(rows)

    def stayed() -> int:
        staying.intersection_update(worker.world.live)
        return len(staying)

    answers = yield worker.receive(answer, stayed)  # in the order of senders
    return {message.sender: message.payload for message in answers}


def _touched(worker: Worker, rows: Rows) -> Rows | None:
    """Returns the parameters that samples depend on, each once; None: all."""
    coordinates = worker.world.learner.coordinates(rows)
    return None if coordinates is None else np.unique(coordinates)


def _bytes_of(worker: Worker, touched: Sequence[Rows | None]) -> float:
    """Returns the bytes of the parameters that some changed, at most those of all parameters."""
    changed = [coordinates for coordinates in touched if coordinates is not None]
    if len(changed) < len(touched):
        return worker.world.num_bytes
    return worker.world.num_bytes * min(2 * len(np.unique(np.concatenate(changed))) / len(worker.params), 1.0)


def _merged(before: Vector, after: Sequence[Vector], touched_by: Sequence[Rows | None]) -> Vector:
    """Returns parameters with all workers' changes: one worker's as they are, several ones' by their mean."""
    count, last, total = np.zeros(len(before), np.int64), before.copy(), np.zeros_like(before)
    for params, touched in zip(after, touched_by, strict=True):
        where = slice(None) if touched is None else touched
        count[where] += 1
        last[where] = params[where]
        total[where] += params[where] - before[where]
    return np.where(count > 1, before + total / np.maximum(count, 1).astype(np.float32), last)
