"""Starting all workers by Ray, having them measure and run, and watching for the end of a run."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, NoReturn, final

from alpa_dejavu._util.orphans import adopt_orphans, end_children
from alpa_dejavu._util.remote import answer_all
from alpa_dejavu.playground._world import stalled
from alpa_dejavu.playground.hosts import enter
from alpa_dejavu.playground.real._actor import CONDUCTOR, Orders, RealWorker, Status
from alpa_dejavu.playground.real._log import LOST, Told
from alpa_dejavu.playground.real._real_faults import RealFaults, Shaped
from alpa_dejavu.playground.real._wires import Address, Inbox

__all__ = ["LOOPBACK", "Conductor", "WorkersSetting", "serve"]

LOOPBACK = "127.0.0.1"
_KEY_BYTES = 32
_PATIENCE_S = 120.0
_LEAD_S, _LOOK_S, _LOOK_SHARE = 0.3, 0.1, 0.05
"""Workers begin so much later than they are told to, and are looked at so often, or each such share of the time that
has passed: a look takes time of theirs.
"""
_ECHOES = 5


class WorkersSetting(NamedTuple):
    """The hosts and the job of some workers.

    Attributes:
        job: the job, as ray pickles it.
        hosts: for each worker the index of its host.
        num_bytes: the bytes of the parameters, or of a gradient.
        processor_s: for each worker the seconds of a processor that a gradient is to take.
        shaped: the hosts' links and the workers' shares; None: there are no such hosts.
        ray_address: where Ray's cluster is; None: it is begun here.
        environment: of all processes.
    """

    job: bytes
    hosts: tuple[int, ...]
    num_bytes: float
    processor_s: tuple[float, ...]
    shaped: Shaped | None
    ray_address: str | None
    environment: Mapping[str, str]


@final
class Conductor:
    """The methods that a process answers, which starts workers by Ray and has them run.

    Args:
        setting: the hosts and the job.
        connection: to the process that asks; where it is closed, a run ends.
    """

    def __init__(self, setting: WorkersSetting, connection: Connection) -> None:
        self._connection = connection
        self._setting, self._key = setting, secrets.token_bytes(_KEY_BYTES)
        self._actors: dict[int, Any] = {}
        self._repeats: dict[int, int] = {}
        self._pids = [0] * len(setting.hosts)

    def measured(self) -> tuple[list[float], dict[tuple[int, int], tuple[float, float]]]:
        """Returns the seconds of a gradient of each worker, all computing at once, and for each pair of hosts the
        latency and the bytes per second of one transfer.
        """
        self.launch()
        self._base_speed()
        compute_s = self._all("measured_s")
        first = {host: number for number, host in reversed([*enumerate(self._setting.hosts)])}
        pairs = {(a, b): (first[a], first[b]) for a, b in itertools.permutations(first, 2)}
        for host, number in first.items():
            neighbours = [n for n, other in enumerate(self._setting.hosts) if other == host and n != number]
            if neighbours:
                pairs[host, host] = number, neighbours[0]
        with self._connected([]):
            return compute_s, {pair: self._link(*workers) for pair, workers in pairs.items()}

    def run(self, orders: bytes, faults: bytes) -> tuple[list[Told], str]:
        """Returns what happened in a run, and why it ended.

        Args:
            orders: `Orders`, as ray pickles them.
            faults: a sequence of `Fault`, as ray pickles it.
        """
        import ray.cloudpickle

        told, given = list[Told](), ray.cloudpickle.loads(orders)
        self.launch()
        self._base_speed()
        changed = RealFaults(
            self._setting.hosts, self._pids, self._setting.shaped, given.seed, given.until.seconds,
            lambda number, now_s: told.append((now_s, number, [(LOST, ())])),
        )  # fmt: skip
        with self._connected(told):
            self._all("prepare", orders)
            changed.begin(ray.cloudpickle.loads(faults))
            start_s = time.monotonic() + _LEAD_S
            self._forget(changed.there)
            self._all("begin", start_s)
            end = self._watched(given, changed, start_s)
            self._all("stop")
        return told, end

    def launch(self) -> None:
        """Starts the workers that aren't there."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        setting = self._setting
        missing = [number for number in range(len(setting.hosts)) if number not in self._actors]
        if missing and setting.shaped is not None:
            setting.shaped.full_speed()
        nodes = {str(node["NodeManagerAddress"]): str(node["NodeID"]) for node in ray.nodes() if node["Alive"]}
        for number in missing:
            address, where = self._address(number), dict[str, Any]()
            if setting.shaped is not None:
                where["scheduling_strategy"] = NodeAffinitySchedulingStrategy(nodes[address], soft=False)
            actor = ray.remote(num_cpus=0, **where)(RealWorker)
            self._actors[number] = actor.remote(number, address, self._key, setting.job)
        for number in missing:  # one after the other: each has a processor of its own
            self._pids[number] = self._of(number, "pid")
            if setting.shaped is not None:
                setting.shaped.limits.put(number, [self._pids[number]])
            repeats = self._repeats.get(number)
            self._repeats[number] = self._of(number, "calibrate", setting.processor_s[number], repeats)

    def _base_speed(self) -> None:
        shaped = self._setting.shaped
        if shaped is not None:
            shaped.slow([1.0] * len(shaped.shares))
            shaped.scale(lambda a, b: 1.0)

    @contextlib.contextmanager
    def _connected(self, told: list[Told]) -> Iterator[None]:
        """Connects all workers with each other and with this process, which they tell what happens."""
        shaped = self._setting.shaped
        own = LOOPBACK if shaped is None else shaped.net.address(shaped.net.driver)
        left = set(self._actors)
        inbox = Inbox(own, self._key, lambda number, sent: told.append((sent[0], number, sent[1])), left.discard)
        try:
            addresses: dict[int, Address] = dict(zip(self._actors, self._all("listen"), strict=True))
            self._all("connect", {**addresses, CONDUCTOR: inbox.address})
            yield
            self._all("close")
            deadline_s = time.monotonic() + _PATIENCE_S
            while left and time.monotonic() < deadline_s:  # what a worker told is there when its connection has ended
                time.sleep(0.005)
        finally:
            inbox.close()

    def _link(self, a: int, b: int) -> tuple[float, float]:
        """Returns the latency from one worker to another one, and the bytes per second of a message of the size of the
        parameters.
        """
        num_bytes = max(round(self._setting.num_bytes), 2**16)
        there_and_back_s = min(self._of(a, "transferred_s", b, 1) for _ in range(_ECHOES))
        longer_s = self._of(a, "transferred_s", b, num_bytes) - there_and_back_s
        return there_and_back_s / 2, num_bytes / max(longer_s, 1e-9)

    def _watched(self, orders: Orders, changed: RealFaults, start_s: float) -> str:
        """Waits for the end of a run; returns why it ended."""
        before, look_s = None, 0.0
        while True:
            now_s = time.monotonic() - start_s
            changed.go_on(now_s)
            self._forget(changed.there)
            if not self._actors:
                return "no worker is left"
            if now_s >= orders.until.seconds:
                return "time"
            if self._connection.poll():  # nothing is asked for meanwhile: the other side has closed it
                raise SystemExit
            if now_s >= look_s:
                states = dict(zip(self._actors, self._all("status"), strict=True))
                look_s = now_s + max(_LOOK_S, _LOOK_SHARE * now_s)
                if all(state.done for state in states.values()) or not changed.next_s() < orders.until.seconds:
                    if _quiet(states) and states == before:
                        return _end(states)
                    before = states
            next_s = min(look_s, changed.next_s(), orders.until.seconds)
            time.sleep(max(start_s + next_s - time.monotonic(), 0.0))

    def _forget(self, present: Sequence[bool]) -> None:
        """Leaves out workers that were killed."""
        for number in [number for number in self._actors if not present[number]]:
            del self._actors[number]

    def _address(self, number: int) -> str:
        shaped = self._setting.shaped
        return LOOPBACK if shaped is None else shaped.net.address(self._setting.hosts[number])

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
    """Whether no worker does anything, and no message between them is under way."""
    under_way = any(states[a].sent[b] != states[b].came[a] for a, b in itertools.permutations(states, 2))
    return not under_way and all(state.passive for state in states.values())


def _end(states: Mapping[int, Status]) -> str:
    waits = {number: state.waits for number, state in states.items() if not state.done}
    return stalled(waits) if waits else "steps"


def serve(connection: Connection, setting: WorkersSetting) -> None:
    """Answers the calls of methods of a `Conductor`, until the other side closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other side ends this one
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.suppress(OSError):
        adopt_orphans()
    # Ray says on standard output, at length, that a worker was killed.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), _ended():
        os.environ.update(setting.environment)
        os.environ.pop("RAY_ADDRESS", None)
        if setting.shaped is not None:
            enter(setting.shaped.net.namespace(setting.shaped.net.driver))
        _connect(setting)
        signal.signal(signal.SIGTERM, _stop)  # again, in place of Ray's, which would leave its processes
        answer_all(connection, Conductor(setting, connection))


@contextlib.contextmanager
def _ended() -> Iterator[None]:
    """Ends all other processes with the block."""
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            _disconnect()
        finally:
            end_children()


def _stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _connect(setting: WorkersSetting) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if setting.shaped is not None:
        own = setting.shaped.net.address(setting.shaped.net.driver)
        ray.init(address=setting.ray_address, _node_ip_address=own, **quiet)
    else:
        ray.init(address="local", num_cpus=len(setting.hosts), include_dashboard=False, _node_ip_address=LOOPBACK,
                 object_store_memory=256 * 1024**2, _system_config={"prestart_worker_first_driver": False},
                 **quiet)  # fmt: skip


def _disconnect() -> None:
    import ray

    ray.shutdown()
