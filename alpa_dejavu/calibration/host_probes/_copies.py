"""Copies between a host's memory and a device, or between two processes where the device is a part of the host's CPU.

Such a process has memory of its own, as a device has; the host's is memory that it shares.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu.calibration.bench import MeasurementError

__all__ = ["Trip", "copier", "received"]

_ANSWER_S = 40.0
"""The process may have to import JAX and to fill its arrays first."""
Trip: TypeAlias = Callable[[], tuple[float, float]]
"""Copies an array to a device and back, and returns the seconds of both."""
_PATIENCE_S = 2.0


def copier(num_bytes: int, device: Any) -> contextlib.AbstractContextManager[Trip]:
    """Returns a context manager that yields a function which copies an array to a device and back, and returns the
    seconds of both.

    Args:
        num_bytes: the array's bytes.
        device: the JAX device; None: another process stands in for it.
    """
    return _between_processes(num_bytes) if device is None else _by_jax(num_bytes, device)


@contextlib.contextmanager
def _by_jax(num_bytes: int, device: Any) -> Iterator[Trip]:
    import jax

    here = np.ones(max(num_bytes // 4, 1), np.float32)

    def trip() -> tuple[float, float]:
        started = time.perf_counter()
        there = jax.device_put(here, device).block_until_ready()
        arrived = time.perf_counter()
        np.asarray(there)
        return arrived - started, time.perf_counter() - arrived

    yield trip


@contextlib.contextmanager
def _between_processes(num_bytes: int) -> Iterator[Trip]:
    shared = SharedMemory(create=True, size=num_bytes)
    try:
        _array(shared, num_bytes).fill(1)
        serving = child_process(_serve, shared.name, num_bytes, name="host-copies", patience_s=_PATIENCE_S)
        with serving as connection:

            def trip() -> tuple[float, float]:
                connection.send(None)
                there_s, back_s = received(connection)
                return there_s, back_s

            yield trip
    finally:
        shared.close()
        shared.unlink()


def received(connection: Connection) -> Any:
    """Returns the next answer of a process that measures.

    Raises:
        MeasurementError: it takes too long.
        EOFError: the process has ended.
    """
    if not connection.poll(_ANSWER_S):
        raise MeasurementError(f"the process that measures gave no answer in {units.seconds(_ANSWER_S)}")
    return connection.recv()


def _array(shared: SharedMemory, num_bytes: int) -> NDArray[np.uint8]:
    return np.ndarray(num_bytes, np.uint8, shared.buf)


def _serve(connection: Connection, name: str, num_bytes: int) -> None:
    """Copies the shared memory to this process's own and back whenever it is asked to, and sends the seconds."""
    shared = SharedMemory(name)
    host, own = _array(shared, num_bytes), np.ones(num_bytes, np.uint8)
    with contextlib.suppress(EOFError):
        while True:
            connection.recv()
            started = time.perf_counter()
            np.copyto(own, host)
            arrived = time.perf_counter()
            np.copyto(host, own)
            connection.send((arrived - started, time.perf_counter() - arrived))
    del host
    shared.close()
