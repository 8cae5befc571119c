"""The measuring of a host's memory on that host: copies to its devices and back, updates on its processors, files.

A `HostProbe` and the device as JAX has it come in, seconds and bytes by name go out. Nothing of Ray or Alpa is needed.
Where a device is a part of the host's CPU, another process stands in for it: it has memory of its own, as a device has,
and the host's is memory that both share. Adam's update runs by JAX in a process that has all of the host's processors.

References:
    Kingma and Ba, Adam: a method for stochastic optimization, ICLR 2015.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.threads import machine_memory_bytes
from alpa_dejavu.calibration._host_files import file_figures
from alpa_dejavu.calibration.bench import HostProbe, MeasurementError

if TYPE_CHECKING:
    import jax

Trip: TypeAlias = Callable[[], tuple[float, float]]
"""Copies an array to a device and back, and returns the seconds of both."""
_MEASURED_S, _BESIDE_S = 0.25, 1.0
"""How long copies and updates go on, alone and beside each other."""
_FEWEST_RUNS = 3
_ANSWER_S = 40.0
"""The process may have to import JAX and to fill its arrays first."""
_PATIENCE_S = 2.0
_RATE, _FIRST, _SECOND, _EPSILON = 1e-3, 0.9, 0.999, 1e-8


def copied(trip: Trip, start: float = 0.0) -> dict[str, float]:
    """Copies to a device and back for a while, and returns the seconds of both ways by name.

    Args:
        trip: a function that copies once, which a `copier` yields.
        start: the time, as `time.time` gives it, from which on it copies, so that devices copy together.
    """
    trip()
    time.sleep(max(start - time.time(), 0.0))
    to_device, to_host = zip(*_repeated(trip, _MEASURED_S), strict=True)
    return {"to_device_s": statistics.median(to_device), "to_host_s": statistics.median(to_host)}


def host_figures(probe: HostProbe, device: Any) -> dict[str, float]:
    """Measures on this host what a probe of its memory asks for, and returns seconds and bytes by the probe's `names`.

    Args:
        probe: what is measured; of copies, those of one device.
        device: the JAX device; None: it is a part of the host's processors, and a process of its own stands in for it.

    Raises:
        MeasurementError: it can't be measured; says why.
    """
    try:
        if probe.name == "memory":
            return {"num_bytes": machine_memory_bytes()}
        if probe.name == "update":
            with _updater(probe.num_bytes // 4) as begin:
                return {"update_s": statistics.median(begin(_MEASURED_S)())}
        if probe.name == "copies":
            with copier(probe.num_bytes, device) as trip:
                return copied(trip)
        if probe.name == "files":
            return file_figures(probe.folder, probe.num_bytes)
        with _updater(probe.num_bytes // 4) as begin, copier(probe.num_bytes, device) as trip:
            finish = begin(_BESIDE_S)
            trips = _repeated(trip, _BESIDE_S)
            return {"update_s": statistics.median(finish()), "copy_s": statistics.median(map(sum, trips))}
    except OSError as error:
        raise MeasurementError(f"{error.strerror or error}") from error
    except EOFError as error:
        raise MeasurementError("the process that measures ended early") from error


def _repeated(trip: Trip, window_s: float) -> list[tuple[float, float]]:
    """Returns the seconds of each copy to a device and back."""
    trips, stop = list[tuple[float, float]](), time.perf_counter() + window_s
    while len(trips) < _FEWEST_RUNS or time.perf_counter() < stop:
        trips.append(trip())
    return trips


def copier(num_bytes: int, device: Any) -> contextlib.AbstractContextManager[Trip]:
    """Returns a context manager that yields a function which copies an array of so many bytes to a device and back, and
    returns the seconds of both.

    Args:
        num_bytes: the array's bytes.
        device: the JAX device; None: another process stands in for it.
    """
    return _between_processes(num_bytes) if device is None else _by_jax(num_bytes, device)


@contextlib.contextmanager
def _by_jax(num_bytes: int, device: Any) -> Iterator[Trip]:
    import jax

    array = np.ones(max(num_bytes // 4, 1), np.float32)

    def trip() -> tuple[float, float]:
        started = time.perf_counter()
        on_device = jax.device_put(array, device).block_until_ready()
        arrived = time.perf_counter()
        np.asarray(on_device)
        return arrived - started, time.perf_counter() - arrived

    yield trip


@contextlib.contextmanager
def _between_processes(num_bytes: int) -> Iterator[Trip]:
    shared = SharedMemory(create=True, size=num_bytes)
    try:
        _array(shared, num_bytes).fill(1)
        serving = child_process(_serve_copies, shared.name, num_bytes, name="host-copies", patience_s=_PATIENCE_S)
        with serving as connection:

            def trip() -> tuple[float, float]:
                connection.send(None)
                to_device_s, to_host_s = _received(connection)
                return to_device_s, to_host_s

            yield trip
    finally:
        shared.close()
        shared.unlink()


def _received(connection: Connection) -> Any:
    """Returns the next answer of a process that measures; raises MeasurementError where it takes too long, and EOFError
    where the process has ended.
    """
    if not connection.poll(_ANSWER_S):
        raise MeasurementError(f"the process that measures gave no answer in {units.seconds(_ANSWER_S)}")
    return connection.recv()


def _array(shared: SharedMemory, num_bytes: int) -> NDArray[np.uint8]:
    return np.ndarray(num_bytes, np.uint8, shared.buf)


def _serve_copies(connection: Connection, name: str, num_bytes: int) -> None:
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


@contextlib.contextmanager
def _updater(num_parameters: int) -> Iterator[Callable[[float], Callable[[], list[float]]]]:
    """Yields a function that begins to update float32 parameters by Adam, again and again for so many seconds, and
    returns a function that waits until that is over and returns the seconds of each update.
    """
    serving = child_process(_serve_updates, num_parameters, name="host-updates", patience_s=_PATIENCE_S)
    with serving as connection:
        _received(connection)

        def begin(window_s: float) -> Callable[[], list[float]]:
            connection.send(window_s)
            return lambda: list(_received(connection))

        yield begin


def _serve_updates(connection: Connection, num_parameters: int) -> None:
    """Says when it is ready; then updates for as long as it is asked to, and sends the seconds."""
    os.environ["XLA_FLAGS"] = ""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")
    update = jax.jit(_adam, donate_argnums=(0, 1, 2))
    parameters, first, second, gradients = (
        jnp.full(num_parameters, value, jnp.float32) for value in (1.0, 0.0, 0.0, 0.01)
    )
    step = 0.0

    def updated_s() -> float:
        nonlocal parameters, first, second, step
        step += 1.0
        started = time.perf_counter()
        parameters, first, second = update(parameters, first, second, gradients, jnp.float32(step))
        jax.block_until_ready((parameters, first, second))
        return time.perf_counter() - started

    updated_s()
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            stop = connection.recv() + time.perf_counter()
            seconds = list[float]()
            while len(seconds) < _FEWEST_RUNS or time.perf_counter() < stop:
                seconds.append(updated_s())
            connection.send(seconds)


def _adam(
    parameters: jax.Array, first: jax.Array, second: jax.Array, gradients: jax.Array, step: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns the parameters and both moments after a step of Adam, each of shape (N,)."""
    import jax.numpy as jnp

    first = _FIRST * first + (1 - _FIRST) * gradients
    second = _SECOND * second + (1 - _SECOND) * gradients * gradients
    scaled = jnp.sqrt(second / (1 - _SECOND**step)) + _EPSILON
    return parameters - _RATE * (first / (1 - _FIRST**step)) / scaled, first, second
