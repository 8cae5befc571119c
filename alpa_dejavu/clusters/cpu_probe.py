"""The roofline of this machine's CPU, measured once in a process.

The devices of a CPU cluster share the cores and the memory of their host: what is measured is what the whole host
does, and a device is given its share of it, as if all devices computed all the time. That is what they do in a
pipeline's steady state; while it fills and drains, a stage runs faster than this says.
"""

from __future__ import annotations

import functools
import logging
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu.problem import Device, SmallProducts, StridedReads

_log = logging.getLogger(__name__)

_SIDE = 384
_COPY_BYTES = 1 << 24
_TINY, _CHAIN = 24, 64
_SMALL_SIDE = 128
_LARGE_ROWS, _CACHED_ROWS = 1024, 256
_CACHED_BYTES = float(1 << 20)
_IMAGE = (4, 16, 16, 64)
# XLA's CPU compiler gives a product of so many operations to oneDNN, and writes the loops of a smaller one itself.
_BELOW_FLOP = float(1 << 24)
_BUDGET_S = 0.06
# Core seconds that Alpa's runtime takes for a device: to start a computation on it, and for a whole step. Orders of
# magnitude: for four small transformer layers on two busy cores, the CPU time of the workers less that of the operators
# was 3 to 6 ms for each computation and device, and hardly depended on the plan.
_DISPATCH_CORE_S = 3e-3
_STEP_CORE_S = 4e-3
# Devices of one process share its threads and caches. In `benchmarks/measured_plans.py` stages of two devices took 1.14
# times as long, for what was predicted, as those of one where each device had but its own thread, and 1.38 times where
# XLA's pool of threads was theirs together, as it is by default.
_CROWDING = 1.25


def measured_cpu(num_devices: int, memory_bytes: float | None = None) -> Device:
    """Measures this machine's CPU, and returns one of its `num_devices` equal shares as a device.

    Args:
        num_devices: how many such devices compute on this machine at the same time.
        memory_bytes: the machine's memory in bytes; None: as much as it has.
    """
    core = _core()
    cores = os.cpu_count() or 1
    # While all devices compute, each has its share of a core.
    slowdown = max(num_devices / cores, 1.0)
    whole = _machine_memory_bytes() if memory_bytes is None else memory_bytes
    return Device(
        name="cpu",
        memory_bytes=whole / num_devices,
        flop_per_s={dtype: rate * cores / num_devices for dtype, rate in core.flop_per_s.items()},
        vector_flop_per_s=core.vector_flop_per_s * cores / num_devices,
        memory_bytes_per_s=core.memory_bytes_per_s * cores / num_devices,
        kernel_s=core.kernel_s * slowdown,
        small_products=core.small_products,
        transcendental_flop=core.transcendental_flop,
        dilated_flop_per_s=None if core.dilated_flop_per_s is None else core.dilated_flop_per_s * cores / num_devices,
        strided=None if core.strided is None else core.strided.scaled(cores / num_devices),
        crowding=_CROWDING,
        dispatch_s=_DISPATCH_CORE_S * slowdown,
        step_s=_STEP_CORE_S * slowdown,
        origin=f"measured on this machine, {num_devices} devices at a time",
    )


@functools.cache
def _core() -> Device:
    """Returns one core of this machine as a device, measured once."""
    started = time.perf_counter()
    core = _peaks()
    _log.info("measured in %s: %s", units.seconds(time.perf_counter() - started), core)
    return core


def _peaks() -> Device:
    """Measures a core on single operators, and returns it as a device."""
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices("cpu")[0]), jax.disable_jit(False):
        large, small = (_product_rate(side) for side in (_SIDE, _SMALL_SIDE))
        values = jnp.full(1 << 16, 0.5, jnp.float32)
        vector = jax.jit(lambda x: jnp.tanh(x))
        vector_s = core_seconds(lambda: vector(values).block_until_ready())
        block = jnp.zeros(_COPY_BYTES // 4, jnp.float32)
        copy = jax.jit(lambda x: x + 1)
        copy_s = core_seconds(lambda: copy(block).block_until_ready())
        tiny = jnp.full((_TINY, _TINY), 0.1, jnp.float32)
        chain = jax.jit(_small_products)
        kernel_s = core_seconds(lambda: chain(tiny).block_until_ready()) / (2 * _CHAIN)
        uncached, cached = (_transposed_bytes_per_s(rows) for rows in (_LARGE_ROWS, _CACHED_ROWS))
        strided = StridedReads(uncached, cached, _CACHED_BYTES)
        dilated = _dilated_rate()
    return Device(
        name="core",
        memory_bytes=_machine_memory_bytes(),
        flop_per_s={"float32": large, "float64": large / 2},
        vector_flop_per_s=Device.transcendental_flop * values.size / vector_s,
        memory_bytes_per_s=2.0 * _COPY_BYTES / copy_s,
        kernel_s=kernel_s,
        small_products=SmallProducts(_BELOW_FLOP, small / large),
        dilated_flop_per_s=min(dilated, large),
        strided=strided,
    )


def _product_rate(side: int) -> float:
    """Returns the operations per second of a product of square matrices."""
    import jax
    import numpy as np

    square = np.full((side, side), 0.5, np.float32)
    product = jax.jit(lambda a, b: a @ b)
    return 2.0 * side**3 / core_seconds(lambda: product(square, square).block_until_ready())


def _transposed_bytes_per_s(rows: int) -> float:
    """Returns the bytes per second of a square matrix that is read by its columns."""
    import jax
    import numpy as np

    square = np.full((rows, rows), 0.5, np.float32)
    transposed = jax.jit(lambda x: x.T + 1)
    return square.nbytes / core_seconds(lambda: transposed(square).block_until_ready())


def _dilated_rate() -> float:
    """Returns the operations per second of the gradient of a strided convolution by its image."""
    import jax
    import numpy as np

    batch, rows, columns, channels = _IMAGE
    kernel = np.full((3, 3, channels, channels), 0.5, np.float32)
    image = np.full(_IMAGE, 0.5, np.float32)
    result = np.full((batch, rows // 2, columns // 2, channels), 0.5, np.float32)

    def convolution(x: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=numbers)

    gradient = jax.jit(lambda given: jax.linear_transpose(convolution, image)(given)[0])
    return 2.0 * result.size * 9 * channels / core_seconds(lambda: gradient(result).block_until_ready())


def _small_products(x: Any) -> Any:
    """Products too small to matter by their operations, with a loop between any two."""
    import jax.numpy as jnp

    start = x
    for _ in range(_CHAIN):
        x = jnp.abs(x @ start)
    return x


def core_seconds(
    run: Callable[[], object],
    cpu_s: Callable[[], float] = time.process_time,
    wall_s: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the CPU seconds, of all threads, that one run of a function takes: a low quantile of several runs, after
    a first run that compiles.

    It isn't wall time, since what else runs on the machine must not change the result. It isn't the least, which may
    miss a thread that still runs, nor the median, which contains spinning threads that wait for work. `cpu_s` and
    `wall_s` are the clocks of this process, in seconds.
    """
    run()
    seconds: list[float] = []
    stop = wall_s() + _BUDGET_S
    while len(seconds) < 5 or wall_s() < stop:
        before = cpu_s()
        run()
        seconds.append(cpu_s() - before)
    return max(statistics.quantiles(seconds, n=10)[1], 1e-9)


def _machine_memory_bytes() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
