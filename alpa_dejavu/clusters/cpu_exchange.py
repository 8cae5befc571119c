"""All-reduces between CPU devices, timed in processes of their own: between those of one process, and of two."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

LOOPBACK = "127.0.0.1"
_SMALL_BYTES, _LARGE_BYTES = 1 << 14, 1 << 24
_ALL_BYTES = 1 << 28
"""The largest arrays of all devices of a process have so many bytes together, at most."""
CACHED_SHARE = 16
"""Arrays of this part of the largest size are still in the cache when the next all-reduce reads them."""
_CHAIN, _SIDE, _LEAST_SIDE = 5, 384, 16
_RUNS, _FEWEST_RUNS, _ENOUGH_S = 40, 3, 0.1
_SMALL_BETWEEN, _LARGE_BETWEEN = 20, 4
"""Two processes run each program so many times, whatever clock each has: they must begin the next one together."""
_PATIENCE_S = 20
_NOTHING_S = 1e-9
_Runs = tuple[list[float], list[float]]
"""The seconds of runs of a program with products alone, and of one with all-reduces between them."""


def large_bytes(num_devices: int = 1) -> int:
    """Returns the bytes of a large array on each of a process's devices."""
    return min(_LARGE_BYTES, _ALL_BYTES // num_devices)


def all_reduce_within(connection: Connection, num_devices: int) -> None:
    """Sends the seconds of a small all-reduce in this process, and how much longer cached and large ones take."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}"}
    large = large_bytes(num_devices)
    # A small one is a program of its own: threads are woken for it, as in a stage, where they wait for one another.
    small_s = statistics.median(_taken(_program(True, 1), *_given(_LEAST_SIDE, _SMALL_BYTES)))
    small = _runs(_LEAST_SIDE, _SMALL_BYTES)
    connection.send((small_s, *(_longer_s(_runs(_LEAST_SIDE, size), small) for size in (large // CACHED_SHARE, large))))


def all_reduce_between(connection: Connection, rank: int, port: int) -> None:
    """Sends the seconds of a small all-reduce between this process and another one, and how much longer a large one
    takes, from the first of them. All ports are on the loopback interface.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    service = joined_by_gloo(rank, f"{LOOPBACK}:{port}")
    small = _runs(_SIDE, _SMALL_BYTES, _SMALL_BETWEEN)
    # Many a small message waits for a core that computes, as it will in training: the mean counts.
    seconds = _reduced_s(small, statistics.fmean), _longer_s(_runs(_SIDE, large_bytes(), _LARGE_BETWEEN), small)
    if rank == 0:
        connection.send(seconds)
    with contextlib.suppress(EOFError):  # the one who asked closes the connection
        connection.recv()
    del service


def _reduced_s(runs: _Runs, of_runs: Callable[[list[float]], float] = min) -> float:
    """The seconds of an all-reduce; `of_runs` says which of several runs' seconds count."""
    alone, beside = runs
    return max((of_runs(beside) - of_runs(alone)) / _CHAIN, _NOTHING_S)


def _longer_s(runs: _Runs, small: _Runs) -> float:
    """How many seconds longer than a small one an all-reduce takes, by the fastest runs of each."""
    return max(_reduced_s(runs) - _reduced_s(small), _NOTHING_S)


def _runs(side: int, num_bytes: int, count: int | None = None) -> _Runs:
    """Runs of all-reduces of so many bytes, each after a product of matrices of so many rows, as in a stage."""
    arrays = _given(side, num_bytes)
    return _taken(_program(False), *arrays, count=count), _taken(_program(True), *arrays, count=count)


def _given(side: int, num_bytes: int) -> list[Any]:
    """A row of so many bytes and a square matrix for each device."""
    import jax

    devices = len(jax.devices())
    return [_spread(np.zeros((devices, *shape), np.float32)) for shape in ((num_bytes // 4,), (side, side))]


def _program(exchanging: bool, count: int = _CHAIN) -> Any:
    """So many products of matrices on each device; an exchanging program adds up a row of all devices after each."""
    import jax
    from jax.experimental.shard_map import shard_map
    from jax.sharding import PartitionSpec

    def computed(row: Any, square: Any) -> Any:
        for _ in range(count):
            # Each waits for the one before it.
            square = square @ (square + row[0, 0])
            row = row + square[0, 0, 0]
            row = jax.lax.psum(row, "x") if exchanging else row
        return row, square

    rows = PartitionSpec("x")
    return jax.jit(shard_map(computed, mesh=_mesh(), in_specs=rows, out_specs=rows, check_rep=False))


def _spread(rows: Any) -> Any:
    """Returns an array with a row on each device of all processes."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    sharding = NamedSharding(_mesh(), PartitionSpec("x"))
    return jax.make_array_from_callback(rows.shape, sharding, lambda index: rows[index])


def _mesh() -> Any:
    import jax
    from jax.sharding import Mesh

    return Mesh(np.array(jax.devices()), ("x",))


def _taken(program: Any, *arrays: Any, count: int | None = None) -> list[float]:
    """The seconds of `count` runs of a program, after one that compiles, or of as many as there is time for."""
    import jax

    jax.block_until_ready(program(*arrays))
    seconds: list[float] = []
    fewest, most = (_FEWEST_RUNS, _RUNS) if count is None else (count, count)
    while len(seconds) < fewest or (len(seconds) < most and sum(seconds) < _ENOUGH_S):
        started = time.perf_counter()
        jax.block_until_ready(program(*arrays))
        seconds.append(time.perf_counter() - started)
    return seconds


def joined_by_gloo(rank: int, address: str) -> Any:
    """Joins this process, of rank 0 or 1, and another one by gloo, before jax makes its devices, and returns what keeps
    them joined. The first of them serves at the address, a host and port on the loopback interface.
    """
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    from alpa_dejavu._util.jax_api import distributed_runtime

    service = distributed_runtime.get_distributed_runtime_service(address, 2) if rank == 0 else None
    client = distributed_runtime.get_distributed_runtime_client(address, rank, init_timeout=_PATIENCE_S)
    client.connect()
    collectives = distributed_runtime.make_gloo_tcp_collectives(client, hostname=LOOPBACK)

    def make_client() -> Any:
        return xla_client.make_cpu_client(distributed_client=client, node_id=rank, num_nodes=2, collectives=collectives)

    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    return service, client
