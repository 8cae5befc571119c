"""The links between CPU devices of this machine, measured once and kept: those of one process, and of several.

The devices of a Ray node are devices of one process, whose collectives go through memory. Those of several Ray nodes of
one machine are devices of a process each, whose collectives gloo carries over the loopback interface. Both are measured
by all-reduces. A tensor goes from stage to stage through Ray, which is work for a core: Python's, and copies.
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
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters._machine_figures import keep_figures, kept_figures
from alpa_dejavu.problem import Device, Link

__all__ = ["LOOPBACK", "cpu_links", "joined_by_gloo"]

_log = logging.getLogger(__name__)

_BETWEEN_FILE, _WITHIN_FILE = "this-machine-link.json", "this-machine-links-of-{}.json"
_SMALL_BYTES, _LARGE_BYTES = 1 << 14, 1 << 24
_ALL_BYTES = 1 << 28
"""The largest arrays of all devices of a process have so many bytes together, at most."""
_CACHED_SHARE = 16
"""Arrays of this part of the largest size are still in the cache when the next all-reduce reads them."""
_CHAIN, _SIDE, _LEAST_SIDE = 5, 384, 16
_RUNS, _FEWEST_RUNS, _ENOUGH_S = 40, 3, 0.25
LOOPBACK = "127.0.0.1"
_PATIENCE_S = 20.0
_SENT_STARTS = {"within": 1.6, "between": 3.0}
_SENT_COPIES = {"within": 20.0, "between": 27.0}
"""A tensor's way through Ray takes as long as so many starts of a computation by Alpa's runtime, and each byte as long
as so many that are read from memory or written there. Between Ray nodes it goes through two more processes. On two
cores, the former was the CPU time of sends, and the latter is what steps took longer with the same stages on two nodes.
"""


def cpu_links(usual: tuple[Link, Link], device: Device, num_devices: int, all_devices: int) -> tuple[Link, Link]:
    """Returns the links within a host of CPU devices and between two such hosts, all of them on this machine, as they
    are while all devices compute: measured, or as they are kept from before.

    Args:
        usual: the two links as they are taken, with a warning, where nothing can be measured.
        device: one of the devices, with the starts and copies that a tensor's way through Ray consists of.
        num_devices: how many devices the host has, which are those of one process.
        all_devices: how many devices all hosts on this machine have together.
    """
    within, between = usual
    if num_devices > 1:
        within = _beside(_measured_within(num_devices, within), num_devices, all_devices)
    if all_devices > num_devices:
        between = _beside(_measured_between(between), 2, all_devices)
    return _sending(within, device, "within"), _sending(between, device, "between")


def _sending(link: Link, device: Device, where: str) -> Link:
    """Returns the link with the latency and the rate of a tensor that goes through Ray."""
    bytes_per_s = device.weight_bytes_per_s or device.memory_bytes_per_s
    return dataclasses.replace(
        link,
        send_latency_s=_SENT_STARTS[where] * device.dispatch_s,
        send_bytes_per_s=bytes_per_s / _SENT_COPIES[where],
    )


def _beside(link: Link, num_devices: int, all_devices: int) -> Link:
    """Returns the link between so many devices, measured while no others computed, as it is while all do: copies take
    longer, waiting doesn't.
    """
    together, alone = (max(count / usable_cores(), 1.0) for count in (all_devices, num_devices))
    names = ("bytes_per_s", "cached_bytes_per_s")
    rates = {name: getattr(link, name) for name in names if getattr(link, name) is not None}
    return dataclasses.replace(link, **{name: rate * alone / together for name, rate in rates.items()})


@functools.cache
def _measured_within(num_devices: int, usual: Link) -> Link:
    """Returns the link between devices of one process."""

    def measured() -> dict[str, float]:
        serve = _all_reduce_within, num_devices
        small_s, cached_s, large_s = _answer([serve], f"{num_devices} devices of a process")
        rounds, large = 2 * (num_devices - 1), _large_bytes(num_devices)
        moved = rounds / num_devices * large
        return {
            "latency_s": small_s / rounds,
            "bytes_per_s": moved / large_s,
            # Too short to be measured, it isn't taken for nothing.
            "cached_bytes_per_s": moved / _CACHED_SHARE / max(cached_s, large_s / _CACHED_SHARE**2),
            # In between, the cache holds a part of them.
            "cached_bytes": large / _CACHED_SHARE**0.5,
        }

    return _known(_WITHIN_FILE.format(num_devices), "devices of a process", measured, usual)


@functools.cache
def _measured_between(usual: Link) -> Link:
    """Returns the link between devices of two processes: an all-reduce of two is two messages of half the bytes."""

    def measured() -> dict[str, float]:
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        small_s, large_s = _answer([(_all_reduce_between, rank, port) for rank in range(2)], "two processes")
        return {"latency_s": small_s / 2, "bytes_per_s": _LARGE_BYTES / large_s}

    return _known(_BETWEEN_FILE, "processes", measured, usual)


def _known(file: str, between: str, measured: Callable[[], dict[str, float]], usual: Link) -> Link:
    """Returns the link with the figures that are kept in a file, or else measured and then kept there."""
    found = kept_figures(file, _link)
    if found is not None:
        return found
    started = time.perf_counter()
    try:
        figures = measured()
        found = _link(figures)
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        _log.warning("the link between %s can't be measured (%s): the usual one is taken", between, error)
        return usual
    _log.info("measured the link between %s in %s", between, units.seconds(time.perf_counter() - started))
    keep_figures(file, figures)
    return found


def _link(figures: Mapping[str, Any]) -> Link:
    names = {field.name for field in dataclasses.fields(Link)} & set(figures)
    return Link(**{name: figures[name] for name in names})


def _answer(serves: list[tuple[Any, ...]], of: str) -> tuple[float, ...]:
    """Returns what the first of some processes sends, which run side by side.

    Raises:
        RuntimeError, EOFError, OSError: a process ended early, or took too long.
    """
    with contextlib.ExitStack() as running:
        ends = [
            running.enter_context(child_process(*serve, name=f"link-{n}", patience_s=2.0))
            for n, serve in enumerate(serves)
        ]
        if not ends[0].poll(_PATIENCE_S):
            raise RuntimeError(f"{of} didn't exchange anything in {units.seconds(_PATIENCE_S)}")
        found: tuple[float, ...] = ends[0].recv()
        return found


def _large_bytes(num_devices: int) -> int:
    return min(_LARGE_BYTES, _ALL_BYTES // num_devices)


def _all_reduce_within(connection: Connection, num_devices: int) -> None:
    """Sends the seconds of a small, a cached and a large all-reduce between devices of this process."""
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}"}
    large = _large_bytes(num_devices)
    _, *others_s = _all_reduces_s(_LEAST_SIDE, statistics.median, _SMALL_BYTES, large // _CACHED_SHARE, large)
    # A small one is a program of its own: threads are woken for it, as in a stage, where they wait for one another.
    alone_s = statistics.median(_taken(_program(True, 1), *_given(_LEAST_SIDE, _SMALL_BYTES)))
    connection.send([alone_s, *others_s])


def _all_reduce_between(connection: Connection, rank: int, port: int) -> None:
    """Sends the seconds of a small and of a large all-reduce between this process and another one, from the first of
    them.

    All ports are on the loopback interface.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    service = joined_by_gloo(rank, f"{LOOPBACK}:{port}")
    # Many a small message waits for a core that computes, as it will in training: the mean counts.
    found = _all_reduces_s(_SIDE, statistics.fmean, _SMALL_BYTES, _LARGE_BYTES)
    if rank == 0:
        connection.send(found)
    with contextlib.suppress(EOFError):  # the one who asked closes the connection
        connection.recv()
    del service


def _all_reduces_s(side: int, of_small: Callable[[list[float]], float], small: int, *others: int) -> list[float]:
    """Returns the seconds of an all-reduce of a small number of bytes between all devices, and what others take longer.

    Each is one of several in a program, and follows a product of matrices with so many rows on each device, as in a
    stage. `of_small` says which of several runs' seconds count for small ones; of the others the fastest do.
    """
    alone, beside = _runs(side, small)
    least_s = min(beside) - min(alone)
    seconds = [of_small(beside) - of_small(alone)]
    for size in others:
        alone, beside = _runs(side, size)
        seconds.append(min(beside) - min(alone) - least_s)
    return [max(each, 1e-9) / _CHAIN for each in seconds]


def _runs(side: int, num_bytes: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of runs of a program with products alone, and of one with all-reduces between them."""
    given = _given(side, num_bytes)
    return _taken(_program(False), *given), _taken(_program(True), *given)


def _given(side: int, num_bytes: int) -> list[Any]:
    """Returns a row of so many bytes and a square matrix for each device."""
    import jax
    import numpy as np

    devices = len(jax.devices())
    return [_spread(np.zeros((devices, *shape), np.float32)) for shape in ((num_bytes // 4,), (side, side))]


def _program(exchanging: bool, count: int = _CHAIN) -> Any:
    """Returns a program that multiplies a matrix on each device, so many times one after the other, and each time also
    adds up a row of all devices, if it is exchanging.
    """
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
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(jax.devices()), ("x",))


def _taken(program: Any, *given: Any) -> list[float]:
    """Returns the seconds of several runs of a program, after a first one that compiles."""
    import jax

    jax.block_until_ready(program(*given))
    taken: list[float] = []
    while len(taken) < _FEWEST_RUNS or (len(taken) < _RUNS and sum(taken) < _ENOUGH_S):
        started = time.perf_counter()
        jax.block_until_ready(program(*given))
        taken.append(time.perf_counter() - started)
    return taken


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
