"""A worker's process, as Ray starts it: an actor that gets ready, measures, and runs exchanges."""

from __future__ import annotations

import os
import pathlib
import queue
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from alpa_dejavu.playground._journal import Journal
from alpa_dejavu.playground._learner import JaxLearner
from alpa_dejavu.playground._world import Exchange
from alpa_dejavu.playground.job import Job, Until
from real_hosts._wires import Address, Inbox, Outbox
from real_hosts._world import Log, RealWorld, Work

__all__ = ["CONDUCTOR", "Orders", "RealWorker", "Status", "learner_of"]

CONDUCTOR = -1
"""The number of the process that starts all workers."""
_PATIENCE_S = 60.0


class Orders(NamedTuple):
    """A run, as all workers are told of it."""

    exchange: Exchange
    until: Until
    seed: int
    hosts: tuple[int, ...]
    num_bytes: float


class Status(NamedTuple):
    """The state of a worker in a run.

    Attributes:
        passive: whether nothing happens there until a message comes.
        sent, came: for each other worker how many messages were sent to it, and came from it.
    """

    passive: bool
    done: bool
    waits: list[Any]
    sent: list[int]
    came: list[int]
    error: str


def learner_of(job: Job, seed: int) -> JaxLearner:
    """Returns what computes a job's updates and losses."""
    assert job.problem is not None, "real workers compute"
    return JaxLearner(job, job.problem, seed, Journal(None, {}))


@final
class RealWorker:
    """One worker, of a job's pickled file, with the secret of all connections. A run is a thread beside its calls."""

    def __init__(self, number: int, host: str, key: bytes, job: pathlib.Path) -> None:
        import ray.cloudpickle

        self._number, self._host, self._key = number, host, key
        self._job: Job = ray.cloudpickle.loads(job.read_bytes())
        self._work = Work(self._job)
        self._sending: dict[int, Outbox] = {}
        self._world: RealWorld | None = None
        self._echoes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def pid(self) -> int:
        """Returns the process's id."""
        return os.getpid()

    def calibrate(self, processor_s: float, repeats: int | None) -> int:
        """Compiles what a run needs; returns how often a gradient is computed to take so long (`Work.calibrate`)."""
        learner = learner_of(self._job, 0)
        params = learner.start(0)
        learner.updated(params, learner.state(params), params)
        self._work.calibrate(params, processor_s, repeats)
        return self._work.repeats

    def measured_s(self) -> float:
        """Returns the seconds that a gradient takes now."""
        return self._work.measured_s(learner_of(self._job, 0).start(0))

    def listen(self) -> Address:
        """Opens a port for the other workers; returns where."""
        self._world = None
        self._inbox = Inbox(self._host, self._key, self._came, self._gone)
        return self._inbox.address

    def connect(self, addresses: Mapping[int, Address]) -> None:
        """Connects to the ports of the others."""
        self._sending = {number: Outbox(address, self._key, self._number)
                         for number, address in addresses.items() if number != self._number}  # fmt: skip

    def transferred_s(self, target: int, num_bytes: int) -> float:
        """Returns the seconds until a message has come to another worker, and a short one back."""
        start = time.monotonic()
        self._sending[target].put("echo", num_bytes)
        self._echoes.get(timeout=_PATIENCE_S)
        return time.monotonic() - start

    def prepare(self, orders: bytes) -> None:
        """Gets ready for a run, given as ray pickles `Orders`."""
        import ray.cloudpickle

        run: Orders = ray.cloudpickle.loads(orders)
        others = {number: outbox for number, outbox in self._sending.items() if number != CONDUCTOR}
        log = Log(lambda now_s, entries: self._sending[CONDUCTOR].put((now_s, entries)))
        self._world = RealWorld(self._number, run.hosts, run.num_bytes, learner_of(self._job, run.seed), log,
                                run.until, run.seed, self._work, others)  # fmt: skip
        self._exchange, self._error = run.exchange, ""

    def begin(self, start_s: float) -> None:
        """Begins the run at a time of `time.monotonic`."""
        self._thread = threading.Thread(target=self._run, args=(start_s,), daemon=True)
        self._thread.start()

    def status(self) -> Status:
        """Returns how far the run is."""
        world = self._world
        assert world is not None, "it was prepared"
        return Status(world.passive, world.done, world.waits, [*world.sent], [*world.came], self._error)

    def stop(self) -> None:
        """Ends the run."""
        assert self._world is not None, "it was prepared"
        self._world.stop()
        self._thread.join(_PATIENCE_S)

    def close(self) -> None:
        """Closes all connections, once what was told has been sent."""
        for outbox in self._sending.values():
            outbox.close()
        self._inbox.close()

    def _run(self, start_s: float) -> None:
        assert self._world is not None, "it was prepared"
        try:
            self._world.run(self._exchange, start_s)
        except Exception:
            self._error = traceback.format_exc()

    def _came(self, sender: int, sent: Any) -> None:
        if self._world is not None:
            self._world.arrived(sender, sent)
        elif sent == "echo":
            self._sending[sender].put("echoed")
        else:
            self._echoes.put(None)

    def _gone(self, sender: int) -> None:
        if self._world is not None:
            self._world.lose(sender)
