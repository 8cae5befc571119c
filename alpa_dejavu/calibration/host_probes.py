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
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.threads import machine_memory_bytes
from alpa_dejavu.calibration._host_files import file_figures
from alpa_dejavu.calibration.bench import HostProbe, MeasurementError

Seconds: TypeAlias = tuple[float, ...]
_Run: TypeAlias = Callable[[], Seconds]
_Making: TypeAlias = Callable[..., AbstractContextManager[_Run]]
Begin: TypeAlias = Callable[[float], Callable[[], list[Seconds]]]
"""Begins to run something again and again for some seconds; what it returns waits, and gives the seconds of each run,
of a copy to a device and of that back."""
_MEASURED_S, _BESIDE_S = 0.25, 1.0
"""How long copies and updates go on, alone and beside each other."""
_FEWEST_RUNS = 3
_ANSWER_S = 40.0
"""The process may have to import JAX and to fill its arrays first."""
_PATIENCE_S = 2.0
_RATE, _FIRST, _SECOND, _EPSILON = 1e-3, 0.9, 0.999, 1e-8


def copied(begin: Begin, start: float = 0.0) -> dict[str, float]:
    """Copies to a device and back, from `start` (`time.time`) on together with others; returns both ways' seconds."""
    begin(0.0)()
    time.sleep(max(start - time.time(), 0.0))
    to_device, to_host = zip(*begin(_MEASURED_S)(), strict=True)
    return {"to_device_s": statistics.median(to_device), "to_host_s": statistics.median(to_host)}


def host_figures(probe: HostProbe, device: Any) -> dict[str, float]:
    """Measures on this host, or one device's copies, what a probe asks for; returns it by the probe's `names`.
    MeasurementError says why it can't be. `device` is JAX's; None: a part of the processors, for which a process stands
    in.
    """
    update = _elsewhere(_updates, probe.num_bytes // 4)
    try:
        if probe.name == "memory":
            return {"num_bytes": machine_memory_bytes()}
        if probe.name == "update":
            with update as begin:
                return {"update_s": statistics.median(map(sum, begin(_MEASURED_S)()))}
        if probe.name == "copies":
            with copier(probe.num_bytes, device) as begin:
                return copied(begin)
        if probe.name == "files":
            return file_figures(probe.folder, probe.num_bytes)
        with update as begin, copier(probe.num_bytes, device) as copy:
            updates, copies = begin(_BESIDE_S), copy(_BESIDE_S)()
            return {"update_s": statistics.median(map(sum, updates())), "copy_s": statistics.median(map(sum, copies))}
    except OSError as error:
        raise MeasurementError(f"{error.strerror or error}") from error
    except EOFError as error:
        raise MeasurementError("the process that measures ended early") from error


def _repeated(run: _Run, window_s: float) -> list[Seconds]:
    runs, stop = list[Seconds](), time.perf_counter() + window_s
    while len(runs) < _FEWEST_RUNS or time.perf_counter() < stop:
        runs.append(run())
    return runs


@contextlib.contextmanager
def copier(num_bytes: int, device: Any) -> Iterator[Begin]:
    """Yields what begins to copy so many bytes to a device of JAX and back; for None a process stands in for it."""
    if device is not None:
        yield _copier_of_jax(num_bytes, device)
        return
    shared = SharedMemory(create=True, size=num_bytes)
    try:
        np.ndarray(num_bytes, np.uint8, shared.buf).fill(1)
        with _elsewhere(_copies, shared.name, num_bytes) as begin:
            yield begin
    finally:
        shared.close()
        shared.unlink()


def _copier_of_jax(num_bytes: int, device: Any) -> Begin:
    import jax

    array = np.ones(max(num_bytes // 4, 1), np.float32)

    def trip() -> Seconds:
        started = time.perf_counter()
        on_device = jax.device_put(array, device).block_until_ready()
        arrived = time.perf_counter()
        np.asarray(on_device)
        return arrived - started, time.perf_counter() - arrived

    return lambda window_s: lambda: _repeated(trip, window_s)


@contextlib.contextmanager
def _elsewhere(making: _Making, *arguments: Any) -> Iterator[Begin]:
    """Yields what begins to run a function in a process of its own; MeasurementError if too slow, EOFError if ended."""

    def answer() -> Any:
        if not connection.poll(_ANSWER_S):
            raise MeasurementError(f"the process that measures gave no answer in {units.seconds(_ANSWER_S)}")
        return connection.recv()

    def begin(window_s: float) -> Callable[[], list[Seconds]]:
        connection.send(window_s)
        return answer

    with child_process(_serve, making, *arguments, name="host-memory", patience_s=_PATIENCE_S) as connection:
        answer()
        yield begin


def _serve(connection: Connection, making: _Making, *arguments: Any) -> None:
    """Says when it is ready; then runs for as long as it is asked to, and sends the seconds."""
    with contextlib.suppress(EOFError), making(*arguments) as run:
        run()
        connection.send(None)
        while True:
            connection.send(_repeated(run, connection.recv()))


@contextlib.contextmanager
def _copies(name: str, num_bytes: int) -> Iterator[_Run]:
    """Yields what copies shared memory to this process's own and back."""
    shared = SharedMemory(name)
    own = np.ones(num_bytes, np.uint8)

    def trip() -> Seconds:
        host: NDArray[np.uint8] = np.ndarray(num_bytes, np.uint8, shared.buf)
        started = time.perf_counter()
        np.copyto(own, host)
        arrived = time.perf_counter()
        np.copyto(host, own)
        return arrived - started, time.perf_counter() - arrived

    try:
        yield trip
    finally:
        shared.close()


@contextlib.contextmanager
def _updates(num_parameters: int) -> Iterator[_Run]:
    """Yields what updates float32 parameters by Adam."""
    os.environ["XLA_FLAGS"] = ""
    import jax
    import jax.numpy as jnp

    jax.config.update("jax_platforms", "cpu")

    def adam(parameters: Any, first: Any, second: Any, gradients: Any, step: Any) -> tuple[Any, Any, Any]:
        first = _FIRST * first + (1 - _FIRST) * gradients
        second = _SECOND * second + (1 - _SECOND) * gradients * gradients
        scaled = jnp.sqrt(second / (1 - _SECOND**step)) + _EPSILON
        return parameters - _RATE * (first / (1 - _FIRST**step)) / scaled, first, second

    update = jax.jit(adam, donate_argnums=(0, 1, 2))
    *state, gradients = (jnp.full(num_parameters, value, jnp.float32) for value in (1.0, 0.0, 0.0, 0.01))
    step = 0.0

    def run() -> Seconds:
        nonlocal state, step
        step += 1.0
        started = time.perf_counter()
        state = jax.block_until_ready(update(*state, gradients, jnp.float32(step)))
        return (time.perf_counter() - started,)

    yield run
