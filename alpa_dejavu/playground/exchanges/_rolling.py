"""A server whose role moves from worker to worker, and is taken over where the worker that has it is lost."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.playground._arrays import State
from alpa_dejavu.playground._gradient import WorkerGradient
from alpa_dejavu.playground._queue import Process
from alpa_dejavu.playground._world import Exchange, Program, Subprogram, Worker, World
from alpa_dejavu.playground.exchanges._all_reduce import mean_gradient
from alpa_dejavu.problem import checks


@dataclasses.dataclass
class _Role:
    """The state of the role, which all workers know.

    Attributes:
        holder: the worker that has it, or that it is on the way to.
        asked: the workers that were sent the newest parameters, whose gradients the next update waits for.
        needed: the workers that must not be lost now, else the role is.
        sender, version: the worker that sent the newest parameters, and their version; it must not be lost before all
            that were asked have them.
        term: how many times it was lost; what is left from earlier terms counts no more.
        moments: for each worker the version and state of the last copy of the optimizer's moments that it had.
    """

    holder: int
    asked: set[int]
    needed: tuple[int, ...]
    sender: int
    version: int = 0
    term: int = 0
    moments: dict[int, tuple[int, State]] = dataclasses.field(default_factory=dict)
    sizes: list[int] = dataclasses.field(default_factory=list)
    servers: dict[int, Process] = dataclasses.field(default_factory=dict)

    def lost(self, world: World) -> bool:
        """Returns whether a worker is lost without which the others would wait for ever."""
        behind = any(world.present[number] and world.workers[number].version < self.version for number in self.asked)
        return not all(world.present[number] for number in self.needed) or (behind and not world.present[self.sender])

    def following(self, world: World) -> int:
        """Returns the next worker that is there after the holder."""
        return next((number for number in world.live if number > self.holder), world.live[0])


@final
@dataclasses.dataclass(frozen=True)
class RollingServer(Exchange):
    """A synchronous server whose role moves on after some updates, with the optimizer's moments; a worker that isn't
    there is skipped. Without faults the parameters are a fixed server's to the bit.

    The parameters are sent to all workers anyway, so the role's move takes the bytes of the moments alone.

    Where the holder is lost, the next worker takes the role: it is sent the newest parameters that any worker has, and
    the last copy of the moments that travelled, and asks all for the gradients that they sent in vain. An update that
    reached nobody is lost. All know at once who is lost, and who has which copy.
    """

    updates: int = 1

    def __post_init__(self) -> None:
        checks.count("rolling server", "updates", self.updates)

    def run(self, worker: Worker) -> Program:
        world, number = worker.world, worker.number
        first = world.live[0]
        role = world.board.setdefault("role", _Role(first, set(world.live), (first,), first))
        role.moments[number] = 0, worker.state
        later = world.came_s[number] > 0
        if later:
            role.asked.discard(number)
        elif number == first:
            worker.send(number, "role", (role.term, worker.replica()))
        role.servers[number] = world.spawn(worker, self._serve(worker, role))
        worker.spawn(self._stand_by(worker, role))
        return self._push(worker, role, later)

    def _push(self, worker: Worker, role: _Role, later: bool) -> Program:
        num_bytes, term, server = worker.world.num_bytes, role.term, role.holder
        gradient: WorkerGradient | None = None
        while True:
            if not later:
                gradient = yield worker.compute()
                worker.send(server, ("gradient", term), gradient, num_bytes)
            later = False
            (message,) = yield worker.receive("params")
            while message.payload[0] < role.term or (gradient and message.payload[2] == gradient.version):
                if message.payload[0] == role.term:  # the server that it was sent to is lost, and this one asks for it
                    term, _, _, server = message.payload
                    worker.send(server, ("gradient", term), gradient, num_bytes)
                (message,) = yield worker.receive("params")
            term, params, version, server = message.payload
            worker.adopt(params, version)

    def _serve(self, worker: Worker, role: _Role) -> Program:
        world = worker.world
        while True:
            (message,) = yield worker.receive("role")
            term, model = message.payload
            if term < role.term:
                continue
            role.needed, role.moments[worker.number] = (worker.number,), (model.version, model.state)
            for update in range(self.updates):
                gradients = yield from self._gradients(worker, role, model.version)
                model.update(mean_gradient(gradients), *gradients)
                role.sizes.append(len(gradients))
                if update == self.updates - 1:
                    role.holder = role.following(world)
                self._broadcast(worker, role, model)
            role.needed, role.moments[worker.number] = (worker.number, role.holder), (model.version, model.state)
            moments = world.num_bytes * world.learner.moments(model.state)
            worker.send(role.holder, "role", (role.term, model), moments)

    def _gradients(self, worker: Worker, role: _Role, version: int) -> Subprogram[list[WorkerGradient]]:
        gradients: dict[int, WorkerGradient] = {}

        def missing() -> int:
            return sum(worker.world.present[number] and number not in gradients for number in role.asked)

        while missing():
            for message in (yield worker.receive(("gradient", role.term), lambda: min(missing(), 1))):
                if message.payload.version == version:
                    gradients[message.sender] = message.payload
                else:
                    worker.drop(message.payload)
        return [gradient for _, gradient in sorted(gradients.items())]

    def _broadcast(self, worker: Worker, role: _Role, model: Worker) -> None:
        """Sends all workers the parameters, and who gathers the next gradients."""
        world = worker.world
        world.shown, role.asked = model.params, set(world.live)
        role.sender, role.version = worker.number, model.version
        for number in world.live:
            worker.send(number, "params", (role.term, model.params, model.version, role.holder), world.num_bytes)

    def _stand_by(self, worker: Worker, role: _Role) -> Program:
        """Waits until the role is lost; the first worker that wakes acts for all."""
        world = worker.world
        while True:
            yield worker.receive("role is lost", lambda: int(not role.lost(world)))
            role.term += 1
            role.holder = role.holder if world.present[role.holder] else role.following(world)
            newest = max(world.live, key=lambda n: (world.workers[n].version, n == role.holder))
            params, version = world.workers[newest].params, world.workers[newest].version
            holders = [number for number in world.live if role.moments[number][0] <= version]
            kept = max(holders, key=lambda n: (role.moments[n][0], n == role.holder), default=newest)
            role.needed, role.sender = (role.holder, newest, kept), role.holder
            world.recorder.undone(sum(role.sizes[version:]))
            del role.sizes[version:]
            state = role.moments[kept][1] if holders else world.learner.state(params)
            moments = world.num_bytes * world.learner.moments(state)
            world.send(newest, role.holder, ("newest", role.term), (params, version), world.num_bytes)
            world.send(kept, role.holder, ("kept", role.term), state, moments)
            holder = world.workers[role.holder]
            world.cancel(role.servers[role.holder])  # it may wait for what was lost
            role.servers[role.holder] = world.spawn(holder, self._serve(holder, role))
            holder.spawn(self._take_over(holder, role, role.term))

    def _take_over(self, worker: Worker, role: _Role, term: int) -> Program:
        (newest,) = yield worker.receive(("newest", term))
        (kept,) = yield worker.receive(("kept", term))
        if term == role.term:
            model = worker.replica()
            model.adopt(*newest.payload)
            model.state = kept.payload
            role.needed = (worker.number,)
            self._broadcast(worker, role, model)
            worker.send(worker.number, "role", (term, model))
