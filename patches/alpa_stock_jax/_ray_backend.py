"""The XLA client of a worker on CPU: as many devices as the worker has of its mesh, joined with those of other hosts.

A mesh on one host needs no connection at all. Over several hosts, the clients meet at a service of XLA's distributed
runtime, and collectives go through gloo; both are in stock jaxlib. Gloo's context of two devices in one process waits
for itself for ever (jaxlib 0.4.30 holds a lock while it connects), so a process has one device then.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from jax._src import xla_bridge
from jax._src.lib import xla_client

from alpa_stock_jax._ray_mailbox import TIMEOUT, peer_timeout_s
from alpa_stock_jax.cpu_process import cpu_environment

__all__ = ["MeshSeat", "make_backend", "worker_environment"]

_CONNECT_TIMEOUT_S = 60
_HEARTBEAT_S = 5
_MISSED_HEARTBEATS = 3


@dataclasses.dataclass(frozen=True)
class MeshSeat:
    """A worker's place in its mesh.

    Attributes:
        process: number of the worker among those of the mesh.
        processes: how many workers the mesh has.
        devices: how many devices this worker has.
        service: address of XLA's distributed runtime service; empty where the mesh has one worker.
        hostname: address that other workers reach this one at; empty where the mesh has one worker.
        threads: how many threads the client computes with.
    """

    process: int
    processes: int
    devices: int
    service: str
    hostname: str
    threads: int


def worker_environment(seat: MeshSeat, environment: dict[str, str]) -> dict[str, str]:
    """The variables that a worker's process must start with.

    Args:
        seat: the worker's place.
        environment: the driver's variables.

    Raises:
        ValueError: the time-out of waits isn't a positive number.
    """
    return {
        "ALPA_IS_WORKER": "True",
        TIMEOUT: str(peer_timeout_s(environment)),
        **cpu_environment(seat.devices, environment),
        # XLA's client and its kernels take the size of their thread pools from this variable.
        "NPROC": str(seat.threads),
    }


def make_backend(seat: MeshSeat) -> tuple[Any, Any]:
    """The CPU client, made jax's own of this process, and the client of the distributed runtime, if there is one.

    Raises:
        RuntimeError: the other workers couldn't be reached, or the process has another number of devices.
    """
    runtime = None
    if seat.processes > 1:
        runtime = _connect(seat)
        collectives = xla_client._xla.make_gloo_tcp_collectives(runtime, hostname=seat.hostname)

        def make_client() -> Any:
            return xla_client.make_cpu_client(
                distributed_client=runtime, node_id=seat.process, num_nodes=seat.processes, collectives=collectives
            )

        xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    backend = xla_bridge.get_backend("cpu")
    if backend.local_device_count() != seat.devices:
        raise RuntimeError(
            f"a worker has {backend.local_device_count()} CPU devices instead of {seat.devices}: "
            f"XLA_FLAGS is {os.environ.get('XLA_FLAGS')!r}; something in the worker set up jax before Alpa did"
        )
    return backend, runtime


def _connect(seat: MeshSeat) -> Any:
    runtime = xla_client._xla.get_distributed_runtime_client(
        seat.service,
        seat.process,
        init_timeout=_CONNECT_TIMEOUT_S,
        shutdown_timeout=_HEARTBEAT_S,
        heartbeat_interval=_HEARTBEAT_S,
        max_missing_heartbeats=_MISSED_HEARTBEATS,
        shutdown_on_destruction=False,
    )
    runtime.connect()
    return runtime
