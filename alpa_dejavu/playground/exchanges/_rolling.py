"""A server whose role moves from worker to worker."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.playground._exchange import Exchange
from alpa_dejavu.playground._worker import Program, Worker
from alpa_dejavu.playground.exchanges._collectives import mean
from alpa_dejavu.problem import checks

__all__ = ["RollingServer"]


@final
@dataclasses.dataclass(frozen=True)
class RollingServer(Exchange):
    """A synchronous server whose role moves on after some updates, with the optimizer's moments; a worker that isn't
    there is skipped. Without faults the parameters are a fixed server's to the bit.

    The parameters are sent to all workers anyway, so the role's move takes the bytes of the moments alone.

    Attributes:
        updates: how many updates a worker makes before it hands on the role.
    """

    updates: int = 1

    def __post_init__(self) -> None:
        checks.count("rolling server", "updates", self.updates)

    def run(self, worker: Worker) -> Program:
        """Sends gradients to whom the last parameters came from, and waits for parameters."""
        worker.spawn(self._serve(worker))
        if worker.number == worker.world.live[0]:
            worker.send(worker.number, "role", worker.replica())
        return self._push(worker)

    def _push(self, worker: Worker) -> Program:
        server = worker.world.live[0]
        while True:
            gradient = yield worker.compute()
            worker.send(server, "gradient", gradient, worker.world.num_bytes)
            (message,) = yield worker.receive("params")
            params, version, server = message.payload
            worker.adopt(params, version)

    def _serve(self, worker: Worker) -> Program:
        world = worker.world
        while True:
            (role,) = yield worker.receive("role")
            held, follower = role.payload, worker.number
            for update in range(self.updates):
                found = yield worker.receive("gradient", lambda: len(world.live))
                gradients = [message.payload for message in found]
                held.update(mean([gradient.values for gradient in gradients]), *gradients)
                world.shown = held.params
                if update == self.updates - 1:
                    later = [number for number in world.live if number > worker.number]
                    follower = (later or list(world.live))[0]
                for number in world.live:
                    worker.send(number, "params", (held.params, held.version, follower), world.num_bytes)
            worker.send(follower, "role", held, world.num_bytes * world.learner.moments(held.state))
