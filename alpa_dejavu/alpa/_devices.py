"""Tries each device of the cluster's hosts after an error, and keeps Alpa from those that don't compute."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, final

import numpy as np

from alpa_dejavu._util.child_process import child_process
from alpa_dejavu.alpa._nodes import on_node

_PROBE_S = 60.0
"""The seconds in which a device must have computed something, the start of a process included."""
_ANSWER_S = 2 * _PROBE_S
_END_S = 2.0
_FREE_S = 10.0


def computes() -> None:
    """Computes something on each device that this process has. Raises RuntimeError if one computes wrongly."""
    import jax

    for device in jax.local_devices():
        total = float(jax.device_put(np.arange(8.0, dtype=np.float32), device).sum())
        if total != 28.0:
            raise RuntimeError(f"{device} adds 0 to 7 up to {total}")


def device_numbers(_worker: Any = None) -> list[int]:
    """Returns the numbers, as Ray counts on each host, of the devices that this process has from Ray."""
    import ray

    return [int(number) for number in ray.get_runtime_context().get_accelerator_ids()["GPU"]]


class _Holder:
    """The holder of one device of a host, by which nobody else gets it from Ray."""

    def number(self) -> int:
        """Returns the device's number on its host, as Ray counts."""
        return device_numbers()[0]

    def tried(self, probe: Callable[[], None]) -> str | None:
        """Returns what a probe, alone with a device in a process, says is wrong; None: nothing. It may end or hang."""
        with child_process(_try, probe, name="device-probe", patience_s=_END_S) as connection:
            if not connection.poll(_PROBE_S):
                return "doesn't answer"
            try:
                wrong: str | None = connection.recv()
            except EOFError:
                return "its process ended"
            return wrong


def _try(connection: Connection, probe: Callable[[], None]) -> None:
    try:
        probe()
    except Exception as error:
        connection.send(f"{type(error).__name__}: {error}")
    else:
        connection.send(None)


@final
class Devices:
    """The devices of the hosts that Ray knows, and which of them are broken: `probe`, called in a process that has only
    one device, raises an error where it doesn't compute.
    """

    def __init__(self, probe: Callable[[], None] = computes) -> None:
        self._probe = probe
        self._held: dict[tuple[str, int], Any] = {}  # node and number of a broken device -> its holder

    def broken(self, nodes: Mapping[str, str]) -> list[str] | None:
        """Returns the devices known to be broken, such as "host-1/3", after trying all others, and holds them; None: a
        host doesn't answer. Nothing else may use the devices meanwhile. Hosts have Ray's ids of their nodes.
        """
        import ray

        broken = [f"{host}/{n}" for host, node in nodes.items() for at, n in self._held if at == node]
        free = _free(Counter(node for node, _ in self._held))
        holders = [(host, node, _holder(node)) for host, node in nodes.items() for _ in range(free.get(node, 0))]
        # A dead host whose node Ray still counts as living has no free devices, perhaps, but doesn't answer either.
        probes = [ray.remote(_here).options(num_cpus=0, scheduling_strategy=on_node(node)) for node in nodes.values()]
        try:
            asked = [holder.number.remote() for _, _, holder in holders]
            tried = [holder.tried.remote(self._probe) for _, _, holder in holders]
            answering = [probe.remote() for probe in probes]
            calls = [*answering, *asked, *tried]
            done, _ = ray.wait(calls, num_returns=len(calls), timeout=_ANSWER_S)
            if len(done) < len(calls):
                return None
            ray.get(answering)
            answers = list(zip(holders, ray.get(asked), ray.get(tried), strict=True))
        except ray.exceptions.RayError:
            return None
        else:
            for (host, node, holder), number, wrong in answers:
                if wrong is not None:
                    self._held[node, number] = holder
                    broken.append(f"{host}/{number}")
            return broken
        finally:
            kept = list(self._held.values())
            for _, _, holder in holders:
                if holder not in kept:
                    with contextlib.suppress(ray.exceptions.RayError):
                        ray.kill(holder)

    def hold(self, host: str, node: str, number: int) -> None:
        """Holds a host's device, so that nobody else gets it; nothing else may use the host's devices meanwhile. Raises
        ValueError if the host has no free device of that number.
        """
        import ray

        if (node, number) in self._held:
            return
        free = _free(Counter(of for of, _ in self._held)).get(node, 0)
        holders = [_holder(node) for _ in range(free)]
        numbers = ray.get([holder.number.remote() for holder in holders])
        for holder, device_numbers in zip(holders, numbers, strict=True):
            if device_numbers == number:
                self._held[node, number] = holder
            else:
                ray.kill(holder)
        if number not in numbers:
            raise ValueError(f"host {host} has no free device {number}, but {', '.join(map(str, sorted(numbers)))}; "
                             f"give one of these, such as {host}/0")  # fmt: skip

    def release(self) -> None:
        """Gives the broken devices back to Ray."""
        import ray

        for holder in self._held.values():
            with contextlib.suppress(ray.exceptions.RayError, ValueError):
                ray.kill(holder)
        self._held.clear()


def _here() -> None:
    """Does nothing, on a host that is there."""


def _holder(node: str) -> Any:
    import ray

    return ray.remote(_Holder).options(num_cpus=0, num_gpus=1, scheduling_strategy=on_node(node)).remote()


def _free(devices: Mapping[str, int]) -> dict[str, int]:
    """Returns how many devices of each living node nobody has, where so many are held as broken, once Ray has taken
    back those of workers that ended.
    """
    from alpa_stock_jax.ray_nodes import nodes

    deadline = time.monotonic() + _FREE_S
    while True:
        living = nodes()
        back = all(node.free_devices == node.devices - devices.get(node.node_id, 0) for node in living)
        if back or time.monotonic() > deadline:
            return {node.node_id: node.free_devices for node in living}
        time.sleep(0.1)
