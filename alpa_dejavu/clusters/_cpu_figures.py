"""The figures of one core of this machine's CPU while all others compute too, measured on single operators."""

from __future__ import annotations

import concurrent.futures
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.problem import Device, SmallProducts, StridedReads

_SIDE = 384
_COPY_BYTES = 1 << 24
_WEIGHTS, _WEIGHT_BYTES = 64, 1 << 20
"""Arrays of this size, so many that no cache holds all: the weights of a small model on several devices."""
_TINY, _CHAIN = 24, 64
_SMALL_SIDE = 128
_LIBRARY_SIDE = 272
"""A product of square matrices of this side is one of the smallest that oneDNN computes."""
_STRIDED_ROWS = 1024
_STRIDED_COLUMNS = 1024, 128, 272
"""The columns of matrices whose lines, read by columns, take 4 MiB, 512 KiB and 64 KiB of a cache. A row of the last
has an odd number of lines, so that they share no places."""
_CACHED_BYTES = 4.0 * _STRIDED_ROWS * _STRIDED_COLUMNS[1]
_EXTREME_ROWS, _EXTREME_COLUMNS = 256, 256
_IMAGE = (4, 16, 16, 64)
# XLA's CPU compiler gives a product of so many operations to oneDNN, and writes the loops of a smaller one itself.
_BELOW_FLOP = float(1 << 24)
_BUDGET_S, _BLOCK_S = 0.05, 0.005
_LOOKUPS = 20_000
_DISPATCH_LOOKUPS, _STEP_LOOKUPS = 40_000, 160_000
"""The work of Alpa's runtime, which is in Python: starting a computation on a device takes as long as so many lookups
in a dictionary, and a whole step as so many. For four small transformer layers on two cores, that was the CPU time of
the workers less that of the operators."""
_PRODUCTS_AGAIN, _COPIES_AGAIN = 1.3, 2.0
"""Figures that are measured again differ by less than these factors where the machine is as it was. Copies differ by
more from second to second, by what other machines on the same host do with its memory."""


def matching(core: Device) -> bool:
    """Returns whether this machine's products and copies, measured again, are about as fast as a core's figures say."""
    products, copies = _product_rate(_SIDE) / core.rate("float32"), _copied_bytes_per_s() / core.memory_bytes_per_s
    return _within(products, _PRODUCTS_AGAIN) and _within(copies, _COPIES_AGAIN)


def _within(ratio: float, factor: float) -> bool:
    return 1 / factor < ratio < factor


def measured_core(memory_bytes: float) -> Device:
    """Measures a core on single operators, and returns it as a device with this much memory."""
    import jax
    import jax.numpy as jnp

    with jax.default_device(jax.devices("cpu")[0]), jax.disable_jit(False):
        large, small, middle = (_product_rate(side) for side in (_SIDE, _SMALL_SIDE, _LIBRARY_SIDE))
        values = jnp.full(1 << 16, 0.5, jnp.float32)
        vector_s = _program_s(lambda x: jnp.tanh(x), values)
        copied = _copied_bytes_per_s()
        tiny = jnp.full((_TINY, _TINY), 0.1, jnp.float32)
        kernel_s = _program_s(_small_products, tiny) / (2 * _CHAIN)
        far, cached, near = (_transposed_bytes_per_s(columns) for columns in _STRIDED_COLUMNS)
        strided = StridedReads(far, cached, _CACHED_BYTES, near)
        dilated = _dilated_rate()
        extreme = _extreme_rate()
        weights = _weight_bytes_per_s()
    lookup_s = _lookup_s()
    return Device(
        name="core",
        memory_bytes=memory_bytes,
        flop_per_s={"float32": large, "float64": large / 2},
        vector_flop_per_s=Device.transcendental_flop * values.size / vector_s,
        memory_bytes_per_s=copied,
        kernel_s=kernel_s,
        dispatch_s=_DISPATCH_LOOKUPS * lookup_s,
        step_s=_STEP_LOOKUPS * lookup_s,
        small_products=SmallProducts(
            _BELOW_FLOP, small / large, max(2.0 * _LIBRARY_SIDE**3 * (1 / middle - 1 / large), 0.0)
        ),
        dilated_flop_per_s=min(dilated, large),
        extreme_flop_per_s=extreme,
        strided=strided,
        uncached_bytes_per_s=min(weights, copied),
    )


def _lookup_s() -> float:
    """The seconds of a lookup in a dictionary, in a Python loop."""
    numbers = {str(n): n for n in range(1000)}
    names = list(numbers) * (_LOOKUPS // 1000)

    def look_up() -> int:
        total = 0
        for name in names:
            total += numbers[name]
        return total

    return core_seconds(look_up) / _LOOKUPS


def _copied_bytes_per_s() -> float:
    """The bytes per second that are read and written where a large array is added to."""
    import jax

    block = jax.device_put(np.zeros(_COPY_BYTES // 4, np.float32))
    return 2.0 * _COPY_BYTES / _program_s(lambda x: x + 1, block)


def _weight_bytes_per_s() -> float:
    """The bytes per second read and written where many arrays are added to in turns, as accumulated gradients are."""
    import jax

    arrays = [jax.device_put(np.zeros(_WEIGHT_BYTES // 4, np.float32)) for _ in range(_WEIGHTS)]
    add, turns = jax.jit(lambda x: x + 1), itertools.count()

    def run() -> None:
        turn = next(turns) % _WEIGHTS
        arrays[turn] = add(arrays[turn]).block_until_ready()

    return 2.0 * _WEIGHT_BYTES / _seconds(run)


def _product_rate(side: int) -> float:
    """The operations per second of a product of square matrices."""
    square = np.full((side, side), 0.5, np.float32)
    return 2.0 * side**3 / _program_s(lambda a, b: a @ b, square, square)


def _transposed_bytes_per_s(columns: int) -> float:
    """The bytes per second of a matrix that is read by its columns."""
    matrix = np.full((_STRIDED_ROWS, columns), 0.5, np.float32)
    return matrix.nbytes / _program_s(lambda x: x.T + 1, matrix)


def _dilated_rate() -> float:
    """The operations per second of the gradient of a strided convolution by its image."""
    import jax

    batch, rows, columns, channels = _IMAGE
    kernel = np.full((3, 3, channels, channels), 0.5, np.float32)
    image = np.full(_IMAGE, 0.5, np.float32)
    result = np.full((batch, rows // 2, columns // 2, channels), 0.5, np.float32)

    def convolution(x: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=numbers)

    gradient_s = _program_s(lambda cotangent: jax.linear_transpose(convolution, image)(cotangent)[0], result)
    return 2.0 * result.size * 9 * channels / gradient_s


def _extreme_rate() -> float:
    """The elements per second of which rows' maxima are taken."""
    matrix = np.full((_EXTREME_ROWS, _EXTREME_COLUMNS), 0.5, np.float32)
    return matrix.size / _program_s(lambda x: x.max(-1), matrix)


def _small_products(x: Any) -> Any:
    """Products too small to matter by their operations, with a loop between any two."""
    import jax.numpy as jnp

    start = x
    for _ in range(_CHAIN):
        x = jnp.abs(x @ start)
    return x


def _program_s(function: Callable[..., Any], *arrays: Any) -> float:
    """The CPU seconds of a function of arrays, once it is compiled, as `_seconds` has them."""
    import jax

    program = jax.jit(function)
    return _seconds(lambda: program(*arrays).block_until_ready())


def _seconds(run: Callable[[], object]) -> float:
    """The CPU seconds of a run while every core that this process may use has one, as in a pipeline."""
    return core_seconds(run, usable_cores())


def core_seconds(
    run: Callable[[], object],
    at_once: int = 1,
    cpu_s: Callable[[], float] = time.process_time,
    wall_s: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns the CPU seconds, of all threads, that one run of a function takes while `at_once` threads run it: a low
    quantile of several blocks of runs, after a first run that compiles. The clocks are those of this process's CPU
    time, and the wall's.

    It isn't wall time, since what else runs on the machine must not change the result. A block has some milliseconds of
    runs, since a thread may still run when the function is done. It isn't the least, nor the median, which contains
    spinning threads that wait for work.
    """
    run()
    began = wall_s()
    run()
    number = max(round(_BLOCK_S / max(wall_s() - began, 1e-6)), 1)
    seconds: list[float] = []

    def runs(_: int) -> None:
        for _ in range(number):
            run()

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        stop = wall_s() + _BUDGET_S
        while len(seconds) < 5 or wall_s() < stop:
            before = cpu_s()
            list(pool.map(runs, range(at_once)))
            seconds.append((cpu_s() - before) / (number * at_once))
    return max(statistics.quantiles(seconds, n=10)[1], 1e-9)
