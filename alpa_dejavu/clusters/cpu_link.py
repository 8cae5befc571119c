"""The link between two processes of this machine, as CPU devices of several Ray nodes have it: measured once, and kept.

Two processes of one device each run all-reduces through gloo, over the loopback interface. So do Alpa's workers where
a stage has devices of several Ray nodes of one machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import socket
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu.clusters._machine_figures import keep_figures, kept_figures
from alpa_dejavu.problem import Link

__all__ = ["LOOPBACK", "joined_by_gloo", "measured_cpu_link"]

_log = logging.getLogger(__name__)

_FILE = "this-machine-link.json"
_SMALL_BYTES, _LARGE_BYTES = 1 << 10, 1 << 24
_RUNS = 15
LOOPBACK = "127.0.0.1"
_PATIENCE_S = 20.0


@functools.cache
def measured_cpu_link(otherwise: Link) -> Link:
    """Returns a link with the latency and rate of collectives between two processes of this machine, measured or as
    they are kept from before; transfers from stage to stage, which go another way, keep theirs.

    Args:
        otherwise: the link to be changed, which is returned as it is, with a warning, where nothing can be measured.
    """
    found = kept_figures(_FILE, lambda kept: (float(kept["latency_s"]), float(kept["bytes_per_s"])))
    if found is None:
        started = time.perf_counter()
        try:
            found = _measured()
        except (OSError, EOFError, RuntimeError) as error:
            _log.warning("the link between processes can't be measured (%s): the usual one is taken", error)
            return otherwise
        _log.info("measured the link between processes in %s", units.seconds(time.perf_counter() - started))
        keep_figures(_FILE, {"latency_s": found[0], "bytes_per_s": found[1]})
    latency_s, bytes_per_s = found
    send_latency_s, send_bytes_per_s = otherwise.sending
    return dataclasses.replace(
        otherwise, latency_s=latency_s, bytes_per_s=bytes_per_s,
        send_latency_s=send_latency_s, send_bytes_per_s=send_bytes_per_s,
    )  # fmt: skip


def _measured() -> tuple[float, float]:
    """Returns latency and rate of a message: an all-reduce of two devices is two messages of half the bytes each.

    Raises:
        RuntimeError, EOFError, OSError: a process ended early, or took too long.
    """
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with contextlib.ExitStack() as running:
        ends = [
            running.enter_context(child_process(_all_reduce, rank, port, name=f"link-{rank}", patience_s=2.0))
            for rank in range(2)
        ]
        if not ends[0].poll(_PATIENCE_S):
            raise RuntimeError(f"two processes didn't exchange anything in {units.seconds(_PATIENCE_S)}")
        small_s, large_s = ends[0].recv()
    # What goes on beside delays single messages, as it will; the rate is that of the fastest one.
    return statistics.median(small_s) / 2, _LARGE_BYTES / min(large_s)


def _all_reduce(connection: Connection, rank: int, port: int) -> None:
    """Sends the seconds of small and of large all-reduces between this process and another one, from the first of them.

    All ports are on the loopback interface.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    import jax
    import numpy as np
    from jax.experimental.shard_map import shard_map
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    service = joined_by_gloo(rank, f"{LOOPBACK}:{port}")
    mesh = Mesh(np.array(jax.devices()), ("x",))
    summed = jax.jit(
        shard_map(lambda a: jax.lax.psum(a, "x"), mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec())
    )

    def seconds(num_bytes: int) -> list[float]:
        here = jax.device_put(np.ones((1, num_bytes // 4), np.float32), jax.local_devices()[0])
        sharding = NamedSharding(mesh, PartitionSpec("x"))
        array = jax.make_array_from_single_device_arrays((2, num_bytes // 4), sharding, [here])
        summed(array).block_until_ready()
        taken = []
        for _ in range(_RUNS):
            started = time.perf_counter()
            summed(array).block_until_ready()
            taken.append(time.perf_counter() - started)
        return taken

    taken = seconds(_SMALL_BYTES), seconds(_LARGE_BYTES)
    if rank == 0:
        connection.send(taken)
    with contextlib.suppress(EOFError):  # the one who asked closes the connection
        connection.recv()
    del service


def joined_by_gloo(rank: int, address: str) -> Any:
    """Joins this process and another one by gloo, before jax makes its devices, and returns what keeps them joined.

    Args:
        rank: 0 in one of the two processes, 1 in the other one.
        address: host and port, on the loopback interface, at which the first of them serves.
    """
    from jax._src import xla_bridge
    from jax._src.lib import xla_client, xla_extension

    service = xla_extension.get_distributed_runtime_service(address, 2) if rank == 0 else None
    client = xla_extension.get_distributed_runtime_client(address, rank, init_timeout=int(_PATIENCE_S))
    client.connect()
    collectives = xla_extension.make_gloo_tcp_collectives(client, hostname=LOOPBACK)

    def make_client() -> Any:
        return xla_client.make_cpu_client(
            distributed_client=client, node_id=rank, num_nodes=2, collectives=collectives
        )

    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    return service, client
