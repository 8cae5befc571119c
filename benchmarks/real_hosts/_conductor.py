"""Starting all workers by Ray, having them measure and run, and watching for the end of a run."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import pathlib
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, final

from alpa_dejavu.playground._world import stalled
from harness import answer_all
from real_hosts import enter
from real_hosts._actor import CONDUCTOR, Orders, RealWorker, Status
from real_hosts._faults import RealFaults, Shaped
from real_hosts._wires import Address, Inbox
from real_hosts._world import LOST, Told

__all__ = ["WorkersSetting", "serve"]

_PATIENCE_S = 120.0
_LEAD_S, _LOOK_S, _LOOK_SHARE = 0.3, 0.1, 0.05
"""Workers begin so much later than they are told to, and are looked at so often, or each such share of the time that
has passed: a look takes time of theirs.
"""
_ECHOES = 5


class WorkersSetting(NamedTuple):
    """The job of some workers, one on each host.

    Attributes:
        job: the file of the job, as ray pickles it: through Ray a large one would have to come from its owner.
        num_bytes: the bytes of the parameters, or of a gradient.
        processor_s: for each worker the seconds of a processor that a gradient is to take.
    """

    job: pathlib.Path
    num_bytes: float
    processor_s: tuple[float, ...]
    shaped: Shaped
    ray_address: str
    environment: Mapping[str, str]


@final
class _Conductor:
    """A process that starts workers by Ray and has them run; where the connection to who asks closes, a run ends."""

    def __init__(self, setting: WorkersSetting, connection: Connection) -> None:
        self._connection, self._shaped, self._net = connection, setting.shaped, setting.shaped.net
        self._setting, self._key = setting, secrets.token_bytes(32)
        self._actors: dict[int, Any] = {}
        self._repeats: dict[int, int] = {}
        self._pids = [0] * self._net.num_hosts

    def measured(self) -> tuple[list[float], dict[tuple[int, int], tuple[float, float]]]:
        """Returns the seconds of a gradient of each worker, all computing at once, and for each pair of them the
        latency and the bytes per second of one transfer.
        """
        self._launch()
        compute_s = self._all("measured_s")
        with self._connected([]):
            return compute_s, {pair: self._link(*pair) for pair in itertools.permutations(self._actors, 2)}

    def run(self, orders: bytes, faults: bytes) -> tuple[list[Told], str]:
        """Returns what happened in a run by `Orders` with faults, both as ray pickles them, and why it ended."""
        import ray.cloudpickle

        told, given = list[Told](), ray.cloudpickle.loads(orders)
        self._launch()
        changed = RealFaults(
            given.hosts, self._pids, self._shaped, given.seed, given.until.seconds,
            lambda number, now_s: told.append((now_s, number, [(LOST, ())])),
        )  # fmt: skip
        with self._connected(told):
            self._all("prepare", orders)
            changed.begin(ray.cloudpickle.loads(faults))
            start_s = time.monotonic() + _LEAD_S
            self._forget_killed(changed)
            self._all("begin", start_s)
            end = self._watched(given, changed, start_s)
            self._all("stop")
        return told, end

    def _launch(self) -> None:
        """Starts the workers that aren't alive, and has all links and workers at their own speeds."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        missing = [number for number in range(self._net.num_hosts) if number not in self._actors]
        if missing:
            self._shaped.limits.limit(None)
        nodes = {str(node["NodeManagerAddress"]): str(node["NodeID"]) for node in ray.nodes() if node["Alive"]}
        launched: dict[int, Any] = {}
        for number in missing:
            address = self._net.address(number)
            place = NodeAffinitySchedulingStrategy(nodes[address], soft=False)
            # Ray ends an actor whose owner it can't ask on a busy machine; a detached one has no owner.
            kind = ray.remote(num_cpus=0, scheduling_strategy=place)(RealWorker)
            named = kind.options(lifetime="detached", name=f"worker-{number}-{secrets.token_hex(8)}")
            launched[number] = named.remote(number, address, self._key, self._setting.job)
        for number, actor in launched.items():  # one after the other: each has a processor of its own
            self._pids[number] = ray.get(actor.pid.remote(), timeout=_PATIENCE_S)
            self._actors[number] = actor
            self._shaped.limits.put(number, [self._pids[number]])
            repeats = self._repeats.get(number)
            self._repeats[number] = self._of(number, "calibrate", self._setting.processor_s[number], repeats)
        self._shaped.slow([1.0] * self._net.num_hosts)
        self._shaped.scale(lambda a, b: 1.0)

    @contextlib.contextmanager
    def _connected(self, told: list[Told]) -> Iterator[None]:
        """Connects all workers with each other and with this process, which they tell what happens."""
        left, own = set(self._actors), self._net.address(self._net.driver)
        inbox = Inbox(own, self._key, lambda number, sent: told.append((sent[0], number, sent[1])), left.discard)
        try:
            addresses: dict[int, Address] = dict(zip(self._actors, self._all("listen"), strict=True))
            self._all("connect", {**addresses, CONDUCTOR: inbox.address})
            yield
            self._all("close")
            deadline_s = time.monotonic() + _PATIENCE_S
            while left and time.monotonic() < deadline_s:  # all that a worker told is in when its connection has ended
                time.sleep(0.005)
        finally:
            inbox.close()

    def _link(self, a: int, b: int) -> tuple[float, float]:
        """The latency between two workers, and the bytes per second of a message as long as the parameters."""
        num_bytes = max(round(self._setting.num_bytes), 2**16)
        round_trip_s = min(self._of(a, "transferred_s", b, 1) for _ in range(_ECHOES))
        longer_s = self._of(a, "transferred_s", b, num_bytes) - round_trip_s
        return round_trip_s / 2, num_bytes / max(longer_s, 1e-9)

    def _watched(self, orders: Orders, changed: RealFaults, start_s: float) -> str:
        """Waits for the end of a run; returns why it ended."""
        before, look_s = None, 0.0
        while True:
            now_s = time.monotonic() - start_s
            changed.go_on(now_s)
            self._forget_killed(changed)
            if self._connection.poll():  # nothing is asked for meanwhile: the other side has closed it
                raise SystemExit
            if now_s >= look_s:
                states = dict(zip(self._actors, self._all("status"), strict=True))
                look_s = now_s + max(_LOOK_S, _LOOK_SHARE * now_s)
                if all(state.done for state in states.values()) or not changed.next_s() < orders.until.seconds:
                    if _quiet(states) and states == before:
                        waits = {number: state.waits for number, state in states.items() if not state.done}
                        return stalled(waits) if waits else "steps"
                    before = states
            time.sleep(max(start_s + min(look_s, changed.next_s()) - time.monotonic(), 0.0))

    def _forget_killed(self, changed: RealFaults) -> None:
        self._actors = {number: actor for number, actor in self._actors.items() if changed.alive[number]}

    def _of(self, number: int, method: str, *arguments: Any) -> Any:
        import ray

        return ray.get(getattr(self._actors[number], method).remote(*arguments), timeout=_PATIENCE_S)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        """Calls a method of all workers at once."""
        import ray

        called = [getattr(actor, method).remote(*arguments) for actor in self._actors.values()]
        answers: list[Any] = ray.get(called, timeout=_PATIENCE_S)
        errors = [state.error for state in answers if isinstance(state, Status) and state.error]
        if errors:
            raise RuntimeError(errors[0])
        return answers


def _quiet(states: Mapping[int, Status]) -> bool:
    """Returns whether no worker does anything, and no message between them is under way."""
    under_way = any(states[a].sent[b] != states[b].came[a] for a, b in itertools.permutations(states, 2))
    return not under_way and all(state.passive for state in states.values())


def serve(connection: Connection, setting: WorkersSetting) -> None:
    """Answers calls of `measured` and `run` until the other side closes the connection."""
    import ray

    net = setting.shaped.net
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side ends this one
    os.environ.update(setting.environment)
    os.environ.pop("RAY_ADDRESS", None)
    enter(net.namespace(net.driver))
    # Ray says on standard output, at length, that a worker was killed.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        ray.init(address=setting.ray_address, _node_ip_address=net.address(net.driver), log_to_driver=False,
                 logging_level=logging.ERROR)  # fmt: skip
        answer_all(connection, _Conductor(setting, connection))
        ray.shutdown()
