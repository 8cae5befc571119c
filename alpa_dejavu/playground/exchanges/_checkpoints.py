"""Synchronous training that goes back to its last checkpoint where a worker is lost: the baseline."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import final

from alpa_dejavu.playground._arrays import State, Vector
from alpa_dejavu.playground._world import Exchange, Program, Worker, World
from alpa_dejavu.playground.exchanges._all_reduce import all_reduce, check_algorithm
from alpa_dejavu.problem import checks


@dataclasses.dataclass
class _CheckpointState:
    """The checkpoint, and who trains from it since the last restart (a term), as all workers know."""

    members: tuple[int, ...]
    kept: tuple[Vector, State, int, int]
    term: int = 0
    applied: int = 0
    written: int = 0


@final
@dataclasses.dataclass(frozen=True)
class CheckpointedAllReduce(Exchange):
    """All workers update by the mean of their gradients, and write a checkpoint after some steps. Where one is lost,
    the others stop what they do at once, and go on from the checkpoint with those that are there; one that comes back
    is taken in at the next checkpoint, from which all start again.

    Batches aren't drawn again: after a restart each worker goes on with its next ones. A checkpoint is lost with no
    worker, and counts when all have written it.

    Attributes:
        write_s: seconds that writing one takes, while nobody trains.
        restart_s: seconds from the loss of a worker, or the taking in of one, until training goes on.
    """

    steps: int = 10
    write_s: float = 0.0
    restart_s: float = 0.0
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        checks.count("checkpoints", "steps", self.steps)
        checks.fields("checkpoints", self, "", "write_s restart_s")
        check_algorithm("checkpoints", self.algorithm)

    def run(self, worker: Worker) -> Program:
        world, number = worker.world, worker.number
        begin = worker.params, worker.state, worker.version, 0
        job: _CheckpointState = world.board.setdefault("job", _CheckpointState(world.live, begin))
        if world.came_s[number] > 0:
            job.members = tuple(member for member in job.members if member != number)
        return self._watch(worker, job)

    def _watch(self, worker: Worker, job: _CheckpointState) -> Program:
        world = worker.world
        while True:
            term = job.term
            training = world.spawn(worker, self._train(worker, job)) if worker.number in job.members else None
            yield worker.receive(("anew", term), functools.partial(_whole, world, job, term))
            if job.term == term:  # the first one that wakes begins the new term for all
                world.recorder.undone(job.applied)
                job.members, job.term, job.applied, job.written = world.live, term + 1, 0, 0
            if training is not None:
                world.cancel(training)

    def _train(self, worker: Worker, job: _CheckpointState) -> Program:
        world, members, term = worker.world, job.members, job.term
        params, worker.state, version, first = job.kept
        worker.adopt(params, version)
        world.shown = params
        if term:
            yield worker.sleep(self.restart_s)
        for step in itertools.count(first):
            gradient = yield worker.compute()
            total = yield from all_reduce(worker, ("gradients", term, step), gradient, self.algorithm, members)
            worker.update(total, gradient)
            world.shown = worker.params
            job.applied += 1
            if (step + 1) % self.steps == 0:
                yield worker.sleep(self.write_s)
                job.written += 1
                if job.written == len(members):
                    job.kept, job.applied, job.written = (worker.params, worker.state, worker.version, step + 1), 0, 0
                    for number in world.live if world.live != members else ():
                        worker.send(number, ("anew", term))


def _whole(world: World, job: _CheckpointState, term: int) -> int:
    return int(job.term == term and bool(job.members) and all(world.present[number] for number in job.members))
