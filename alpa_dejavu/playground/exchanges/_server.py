"""Parameter servers: a worker's second program has the parameters that count, and updates them."""

from __future__ import annotations

import dataclasses
import itertools
from typing import final

from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._learner import Gradient
from alpa_dejavu.playground._worker import Program, Worker
from alpa_dejavu.playground.exchanges._collectives import mean
from alpa_dejavu.problem import checks

__all__ = ["AsynchronousServer", "ShardedServer", "StaleSynchronousServer", "SynchronousServer", "check_server", "push"]


@final
@dataclasses.dataclass(frozen=True)
class SynchronousServer(Exchange):
    """A server updates by the mean of a gradient of each worker, or of all but the slowest ones' (backup workers).

    A gradient that comes after the update for which it was computed is dropped, and its worker gets the parameters.

    Attributes:
        backups: how many workers an update doesn't wait for.
        server: the number of the worker that the server is on.

    References:
        Chen, Monga, Bengio and Jozefowicz, Revisiting Distributed Synchronous SGD, 2016 (backup workers).
    """

    backups: int = 0
    server: int = 0

    def __post_init__(self) -> None:
        checks.not_negative("synchronous server", "backups", self.backups)

    def run(self, worker: Worker) -> Program:
        """Sends gradients, and waits for parameters; on the server's worker it starts the server."""
        check_server(worker, self.server)
        if self.backups >= worker.world.size:
            raise ValueError(f"synchronous server: backups is {self.backups}, but must be below the "
                             f"{worker.world.size} workers; wait for one of them")  # fmt: skip
        if worker.number == self.server:
            worker.spawn(self._serve(worker))
        return push(worker, self.server)

    def _serve(self, worker: Worker) -> Program:
        world, held, waiting = worker.world, worker.replica(), list[Gradient]()
        while True:
            found = yield worker.receive("gradient", lambda: max(len(world.live) - self.backups - len(waiting), 0))
            for message in found:
                if message.payload.version == held.version:
                    waiting.append(message.payload)
                    continue
                worker.drop(message.payload)
                worker.send(message.sender, "params", (held.params, held.version), world.num_bytes)
            if not waiting or len(waiting) < len(world.live) - self.backups:
                continue
            waiting.sort(key=lambda gradient: gradient.worker)
            held.update(mean([gradient.values for gradient in waiting]), *waiting)
            world.shown = held.params
            for gradient in waiting:
                worker.send(gradient.worker, "params", (held.params, held.version), world.num_bytes)
            waiting.clear()


@final
@dataclasses.dataclass(frozen=True)
class AsynchronousServer(Exchange):
    """A server updates by each gradient when it comes.

    Attributes:
        server: the number of the worker that the server is on.

    References:
        Dean and others, Large Scale Distributed Deep Networks, NIPS 2012.
    """

    server: int = 0

    def run(self, worker: Worker) -> Program:
        """Sends gradients, and waits for parameters; on the server's worker it starts the server."""
        check_server(worker, self.server)
        if worker.number == self.server:
            worker.spawn(self._serve(worker))
        return push(worker, self.server)

    def _serve(self, worker: Worker) -> Program:
        world, held = worker.world, worker.replica()
        while True:
            (message,) = yield worker.receive("gradient")
            held.update(message.payload.values, message.payload)
            world.shown = held.params
            worker.send(message.sender, "params", (held.params, held.version), world.num_bytes)


@final
@dataclasses.dataclass(frozen=True)
class StaleSynchronousServer(Exchange):
    """A worker may be so many steps ahead of the slowest one; a step's gradients are applied together, as their mean,
    when all workers' are there. At a bound of 0 all go in step.

    Attributes:
        bound: how many updates the parameters of a worker may lack when it computes.
        server: the number of the worker that the server is on.

    References:
        Ho and others, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013.
    """

    bound: int = 2
    server: int = 0

    def __post_init__(self) -> None:
        checks.not_negative("stale synchronous server", "bound", self.bound)

    def run(self, worker: Worker) -> Program:
        """Sends gradients, and waits for parameters; on the server's worker it starts the server."""
        check_server(worker, self.server)
        if worker.number == self.server:
            worker.spawn(self._serve(worker))
        return push(worker, self.server)

    def _serve(self, worker: Worker) -> Program:
        world, held = worker.world, worker.replica()
        steps: dict[int, dict[int, Gradient]] = {}
        ahead: dict[int, int] = {}
        while True:
            found = yield worker.receive("gradient", lambda: len(steps.get(held.version, ())) < len(world.live))
            for message in found:
                steps.setdefault(message.payload.step, {})[message.sender] = message.payload
                ahead[message.sender] = message.payload.step + 1
            while len(steps.get(held.version, ())) >= len(world.live):
                every = [gradient for _, gradient in sorted(steps.pop(held.version).items())]
                held.update(mean([gradient.values for gradient in every]), *every)
                world.shown = held.params
            for number in sorted(number for number, step in ahead.items() if step - held.version <= self.bound):
                del ahead[number]
                worker.send(number, "params", (held.params, held.version), world.num_bytes)


@final
@dataclasses.dataclass(frozen=True)
class ShardedServer(Exchange):
    """A synchronous server whose parameters lie in equal shards on several workers.

    Attributes:
        shards: how many workers have a shard, the first ones; None: all of them.

    References:
        Li and others, Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014.
    """

    shards: int | None = None

    def __post_init__(self) -> None:
        if self.shards is not None:
            checks.count("sharded server", "shards", self.shards)

    def run(self, worker: Worker) -> Program:
        """Sends each shard of its gradients to that shard's server, and waits for all shards of the parameters."""
        world = worker.world
        shards = world.size if self.shards is None else self.shards
        if shards > world.size:
            raise ValueError(f"sharded server: shards is {shards}, but must be at most the {world.size} workers; give "
                             "fewer")  # fmt: skip
        if worker.number < shards:
            worker.spawn(self._serve(worker, shards))
        if worker.number == 0:
            world.board["held"] = worker.replica()
        return self._push(worker, shards)

    def _push(self, worker: Worker, shards: int) -> Program:
        for step in itertools.count():
            gradient = yield worker.compute()
            for shard in range(shards):
                worker.send(shard, ("gradient", step), gradient, worker.world.num_bytes / shards)
            found = yield worker.receive(("params", step), shards)
            worker.adopt(*found[0].payload)

    def _serve(self, worker: Worker, shards: int) -> Program:
        world = worker.world
        for step in itertools.count():
            found = yield worker.receive(("gradient", step), lambda: len(world.live))
            held = world.board["held"]
            if held.version == step:  # the first shard of a step stands for the others, whose gradients are as known
                gradients = [message.payload for message in found]
                held.update(mean([gradient.values for gradient in gradients]), *gradients)
                world.shown = held.params
                world.board["sent"] = held.params, held.version
            for message in found:
                worker.send(message.sender, ("params", step), world.board["sent"], world.num_bytes / shards)


def push(worker: Worker, server: int) -> Program:
    """Computes, sends the gradient to a server, and goes on with the parameters that it sends back."""
    while True:
        gradient = yield worker.compute()
        worker.send(server, "gradient", gradient, worker.world.num_bytes)
        (message,) = yield worker.receive("params")
        worker.adopt(*message.payload)


def check_server(worker: Worker, server: int) -> None:
    """Raises ValueError unless a server is on a worker that there is."""
    if not 0 <= server < worker.world.size:
        raise ValueError(f"server is {server}, but must be one of 0..{worker.world.size - 1}; name a worker of the job")
