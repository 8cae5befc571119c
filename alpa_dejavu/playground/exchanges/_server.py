"""Parameter servers: a worker's second program has the parameters that count, and updates them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import final

from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._queue import Message
from alpa_dejavu.playground._world import Exchange, Program, Subprogram, Worker
from alpa_dejavu.playground.exchanges._all_reduce import mean_gradient
from alpa_dejavu.playground.exchanges._server_parts import (
    ServerModel,
    arrived_from,
    check_count,
    combiner,
    is_here,
    replace,
)
from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class SynchronousServer(Exchange):
    """A server updates by the mean of a gradient of each worker, or of all but the slowest ones' (backup workers).

    A gradient that comes after the update for which it was computed is dropped, and its worker gets the parameters.
    Workers that have had their steps aren't waited for.

    Attributes:
        backups: how many workers an update doesn't wait for.
        server: the number of the worker that the server is on, as of all exchanges with a server.
        rule: the name of a rule of `alpa_dejavu.training.robust` that makes one gradient of all, or "mean".

    References:
        Chen, Monga, Bengio and Jozefowicz, Revisiting Distributed Synchronous SGD, 2016 (backup workers).
    """

    backups: int = 0
    server: int = 0
    rule: str = "mean"
    wrong: int = 0

    def __post_init__(self) -> None:
        checks.not_negative("synchronous server", "backups", self.backups)
        combiner(self.rule, self.wrong)

    def run(self, worker: Worker) -> Program:
        if self.backups >= worker.world.size:
            raise ValueError(f"synchronous server: backups is {self.backups}, but must be below the "
                             f"{worker.world.size} workers; wait for one of them")  # fmt: skip
        check_count(self.rule, self.wrong, worker.world.size - self.backups)
        if worker.finished:  # it came back too late to begin a step
            worker.world.board.setdefault("last", set()).add(worker.number)
        if serves(worker, self.server):
            worker.spawn(self._serve(worker))
        return push(worker, self.server)

    def _serve(self, worker: Worker) -> Program:
        world, model = worker.world, ServerModel(worker, combiner(self.rule, self.wrong))
        got = dict[int, Message]()
        last: set[int] = world.board.setdefault("last", set())  # who has sent the last gradient of its steps

        def short() -> bool:
            have = arrived_from(world, got)
            owing = len(set(world.live).difference(have, last))
            return len(have) < max(min(len(world.live) - self.backups, len(have) + owing), 1)

        while True:
            while short():
                for message in (yield worker.receive("gradient", lambda: int(short()))):
                    if world.finished(message.sender) and is_here(world, message):
                        last.add(message.sender)
                    if message.payload.version == model.version:
                        replace(got, message, worker.drop)
                    else:
                        worker.drop(message.payload)
                        model.reply(message)
            model.update(got)
            for _, message in sorted(got.items()):
                model.reply(message)
            got.clear()


@final
@dataclasses.dataclass(frozen=True)
class AsynchronousServer(Exchange):
    """A server updates by each gradient when it comes.

    References:
        Dean and others, Large Scale Distributed Deep Networks, NIPS 2012.
    """

    server: int = 0

    def run(self, worker: Worker) -> Program:
        if serves(worker, self.server):
            worker.spawn(self._serve(worker))
        return push(worker, self.server)

    def _serve(self, worker: Worker) -> Program:
        model = ServerModel(worker)
        while True:
            (message,) = yield worker.receive("gradient")
            model.update({message.sender: message})
            model.reply(message)


@final
@dataclasses.dataclass(frozen=True)
class StaleSynchronousServer(Exchange):
    """A worker may be `bound` steps ahead of the slowest one; a step's gradients are applied together, as their mean,
    when all workers' are there. At a bound of 0 all go in step.

    References:
        Ho and others, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013.
    """

    bound: int = 2
    server: int = 0

    def __post_init__(self) -> None:
        checks.not_negative("stale synchronous server", "bound", self.bound)

    def run(self, worker: Worker) -> Program:
        if serves(worker, self.server):
            worker.spawn(self._serve(worker))
        return push(worker, self.server)

    def _serve(self, worker: Worker) -> Program:
        world, model = worker.world, ServerModel(worker)
        steps: dict[int, dict[int, Message]] = {}
        ahead: dict[int, Message] = {}

        def short() -> bool:
            return len(arrived_from(world, steps.get(model.version, {}))) < len(world.live)

        while True:
            for message in (yield worker.receive("gradient", lambda: int(short()))):
                ahead[message.sender] = message
                if message.payload.step < model.version:  # its worker was lost meanwhile, so that nobody waited for it
                    worker.drop(message.payload)
                else:
                    replace(steps.setdefault(message.payload.step, {}), message, worker.drop)
            while not short():
                model.update(steps.pop(model.version))
            for number in sorted(n for n, last in ahead.items() if last.payload.step + 1 - model.version <= self.bound):
                model.reply(ahead.pop(number))


@final
@dataclasses.dataclass(frozen=True)
class ShardedServer(Exchange):
    """A synchronous server whose parameters lie in equal shards on several workers; these are the first ones, or all.

    References:
        Li and others, Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014.
    """

    shards: int | None = None

    def __post_init__(self) -> None:
        checks.count("sharded server", "shards", 1 if self.shards is None else self.shards)

    def run(self, worker: Worker) -> Program:
        world = worker.world
        shards = world.size if self.shards is None else self.shards
        if shards > world.size:
            raise ValueError(f"sharded server: shards is {shards}, but must be at most the {world.size} workers; give "
                             "fewer")  # fmt: skip
        if worker.number < shards:
            world.board.setdefault("held", worker.replica())
            worker.spawn(self._serve(worker, shards))
        return self._push(worker, shards)

    def _push(self, worker: Worker, shards: int) -> Program:
        for step in itertools.count():
            gradient = yield worker.compute()
            for shard in range(shards):
                worker.send(shard, ("gradient", step), gradient, worker.world.num_bytes / shards)
            messages = yield worker.receive(("params", step), shards)
            worker.adopt(*messages[0].payload)

    def _serve(self, worker: Worker, shards: int) -> Program:
        world = worker.world
        for step in itertools.count():
            world.board.pop(("settled", step - 1), None)
            settled = world.board.setdefault(("settled", step), set())  # gradients that a server applied or dropped
            got = yield from self._gathered(worker, step, settled)
            model, gradients = world.board["held"], [message.payload for _, message in sorted(got.items())]
            if model.version == step:  # the first shard of a step stands for the others, whose gradients are as known
                settled.update(gradients)
                model.update(mean_gradient(gradients), *gradients)
                world.shown = model.params
                world.board["sent"] = model.params, model.version
            for gradient in gradients:
                _drop_once(worker, gradient, settled)
            for _, message in sorted(got.items()):
                if is_here(world, message):
                    worker.send(message.sender, ("params", step), world.board["sent"], world.num_bytes / shards)

    def _gathered(self, worker: Worker, step: int, settled: set[WorkerGradient]) -> Subprogram[dict[int, Message]]:
        world, got = worker.world, dict[int, Message]()

        def short() -> bool:
            return len(arrived_from(world, got)) < len(world.live)

        while short():
            for message in (yield worker.receive(("gradient", step), lambda: int(short()))):
                replace(got, message, lambda gradient: _drop_once(worker, gradient, settled))
        return got


def _drop_once(worker: Worker, gradient: WorkerGradient, settled: set[WorkerGradient]) -> None:
    """Counts a gradient that won't be applied, of which several shards may have a part."""
    if gradient not in settled:
        settled.add(gradient)
        worker.drop(gradient)


def push(worker: Worker, server: int) -> Program:
    """Computes, sends the gradient to a server, and goes on with the parameters that it sends back."""
    while True:
        gradient = yield worker.compute()
        worker.send(server, "gradient", gradient, worker.world.num_bytes)
        (message,) = yield worker.receive("params")
        worker.adopt(*message.payload)


def serves(worker: Worker, server: int) -> bool:
    """Returns whether a server, by its worker's number, is on a worker; raises ValueError if it can be on none."""
    if not 0 <= server < worker.world.size:
        raise ValueError(f"server is {server}, but must be one of 0..{worker.world.size - 1}; name a worker of the job")
    return worker.number == server
