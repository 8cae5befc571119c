"""Matrix products: tiles in waves over the multiprocessors, traffic beside them, the power limit, and a floor."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from alpa_dejavu.clusters.gpus import Gpu
from alpa_dejavu.costs.kernels._classes import matrix_rate, width_bytes
from alpa_dejavu.costs.kernels._figures import ProductFigures, StreamFigures

if TYPE_CHECKING:
    from jaxtyping import Float

Array: TypeAlias = "Float[np.ndarray, ' operators']"
"""A figure of each of some operators, such as products."""
Tiles: TypeAlias = "Float[np.ndarray, 'operators tiles']"
"""How many tiles of each kind each operator has."""


def stream_seconds(gpu: Gpu, figures: StreamFigures, num_bytes: Array, *, rows: bool = False) -> Array:
    """Returns the seconds of operators that read and write so many bytes, without their launch; `rows`: they are
    normalisations of rows, which read them more than once.
    """
    share = figures.row_share if rows else figures.memory_share
    return traffic_seconds(gpu, num_bytes, num_bytes, share, figures.cache_bytes, figures.cache_held)


def traffic_seconds(
    gpu: Gpu, num_bytes: Array, set_bytes: Array, memory_share: float, cache_bytes: float, cache_held: float
) -> Array:
    """Returns the seconds in which bytes are read and written, at a share of the memory's rate.

    The L2 cache holds the less of them, the more of it their working set (`set_bytes`) takes: all bytes go through it,
    and those that it doesn't hold through memory. `cache_bytes` are those per clock cycle of a multiprocessor; by
    `cache_held` times the cache's size half of the bytes go through memory.
    """
    missed = set_bytes**2 / (set_bytes**2 + (gpu.l2_bytes * cache_held) ** 2)
    cached_s = num_bytes / (gpu.num_sm * gpu.clock_hz * cache_bytes)
    return np.asarray(np.maximum(cached_s, num_bytes * missed / (gpu.memory_bytes_per_s * memory_share)))


def longer_of(first: Array, second: Array, sharpness: float = 4.0) -> Array:
    """Returns a bit more than the longer of two times that overlap, the more the closer they are.

    >>> longer_of(np.array([3.0, 1.0]), np.array([1.0, 1.0])).round(3).tolist()
    [3.009, 1.189]
    """
    longer = np.maximum(np.maximum(first, second), np.finfo(np.float64).tiny)
    return np.asarray(longer * ((first / longer) ** sharpness + (second / longer) ** sharpness) ** (1 / sharpness))


_TILES = np.array([(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64)], dtype=float)
HEIGHTS, _WIDTHS = _TILES.T
"""The rows and the columns of the tiles among which a library chooses."""
_LARGE = (256.0, 128.0)
_PARTS = (1, 2, 4)
"""Into how many parts a library may split the contracted elements, to have more tiles."""
_CLOCK_HZ = 1.83e9
_IDLE_W = 0.8
"""The watts of a multiprocessor that don't go into products: leakage, clocks, and its share of the memory. An estimate:
a GPU at its power limit with 100 multiprocessors takes about 80 W when it waits."""
_AT_ONCE, _HEATING_S = 0.4, 2e-3
"""The share of the slowdown by the power limit that even short products have, and the seconds, at the sheet's rate, in
which half of the rest comes. Chosen by the errors on GPUs that were left out; around them it matters little."""


def product_seconds(
    gpu: Gpu, dtype: str, figures: ProductFigures, sizes: Float[np.ndarray, "operators 4"], *, cast: bool = True,
    hot: bool = False, rate: float | None = None,
) -> Array:  # fmt: skip
    """Returns the seconds of matrix products, or of batches of products of one size; `sizes` has how many products,
    their rows, columns and contracted elements.

    A product takes as long as the tiles of the best choice of tiles, in waves over the multiprocessors, or as its
    traffic through L2 cache and memory, whichever takes longer, and a floor besides. A long one, or any on a `hot` GPU
    as in training, reaches the power limit, where the clock falls until the voltage, and with it the energy of an
    operation, is low enough. With `cast`, 8-bit left operands are cast from 16 bits by kernels of their own, as they
    were when measured; a training step casts them where they are written. `rate` is in place of the dtype's operations
    per second.
    """
    batch, rows, columns, inner = np.asarray(sizes, dtype=np.float64).T
    rate = matrix_rate(gpu, dtype) if rate is None else rate
    work = _best_tiles_seconds(gpu, figures, rate, batch, rows, columns, inner)
    work = work * _slowdown(gpu, figures, rate, 2 * batch * rows * columns * inner, hot)
    width = width_bytes(dtype)
    moved = width * batch * (rows + columns) * inner + figures.write_weight * max(width, 2) * batch * rows * columns
    seconds = longer_of(work, _traffic_seconds(gpu, figures, moved)) + figures.floor_clocks / gpu.clock_hz
    if cast and width == 1:
        casting = _traffic_seconds(gpu, figures, figures.cast_bytes * batch * rows * inner)
        seconds = seconds + casting + figures.cast_clocks / gpu.clock_hz
    return seconds


def tiles_seconds(
    gpu: Gpu, dtype: str, figures: ProductFigures, row_tiles: Tiles, flop: Array, columns: Array, inner: Array,
    *, hot: bool = False,
) -> Array:  # fmt: skip
    """Returns the seconds that tiles of products with one common width take by themselves; `row_tiles` says into how
    many tiles of each height the rows are cut.
    """
    rate = matrix_rate(gpu, dtype)
    tiles = row_tiles * np.ceil(columns[:, None] / _WIDTHS)
    seconds = _waves_seconds(gpu, figures, rate, tiles, inner).min(axis=1)
    return np.asarray(seconds * _slowdown(gpu, figures, rate, flop, hot))


def _best_tiles_seconds(
    gpu: Gpu, figures: ProductFigures, rate: float, batch: Array, rows: Array, columns: Array, inner: Array
) -> Array:
    tiles = batch[:, None] * np.ceil(rows[:, None] / HEIGHTS) * np.ceil(columns[:, None] / _WIDTHS)
    best = _waves_seconds(gpu, figures, rate, tiles, inner).min(axis=1)
    for parts in _PARTS[1:]:
        # The parts' sums are added up through memory, in single precision.
        added = _traffic_seconds(gpu, figures, 4.0 * parts * batch * rows * columns)
        best = np.minimum(best, _waves_seconds(gpu, figures, rate, tiles * parts, inner / parts).min(axis=1) + added)
    return best


def _waves_seconds(gpu: Gpu, figures: ProductFigures, rate: float, tiles: Tiles, inner: Array) -> Tiles:
    """Returns the seconds by each kind of tile."""
    loss = 1 + figures.tile_loss * (64 / HEIGHTS + 64 / _WIDTHS)
    loss = loss / (1 + figures.tile_loss * sum(64 / side for side in _LARGE))
    element_s = 2 * HEIGHTS * _WIDTHS * loss / (rate / gpu.num_sm * figures.peak_share)
    full = tiles / gpu.num_sm
    waves = np.where(full < 1, 1.0, full + figures.tail * (np.ceil(full) - full))
    return np.asarray(waves * (inner[:, None] + figures.prologue) * element_s)


def _slowdown(gpu: Gpu, figures: ProductFigures, rate: float, flop: Array, hot: bool) -> Array:
    """Returns by what factor the power limit slows products down: more energy than it allows for lowers the clock, with
    whose square the energy of an operation goes.
    """
    energy_j = figures.energy_j * (gpu.clock_hz / _CLOCK_HZ) ** 2
    allowed_j = max(gpu.power_w - _IDLE_W * gpu.num_sm, 0.1 * gpu.power_w) / rate
    further = (1 + (energy_j / allowed_j) ** 2) ** 0.25 - 1
    seconds = flop / rate
    heated = np.ones_like(seconds) if hot else _AT_ONCE + (1 - _AT_ONCE) * seconds / (seconds + _HEATING_S)
    return np.asarray(1 + further * heated)


def _traffic_seconds(gpu: Gpu, figures: ProductFigures, moved: Array) -> Array:
    return traffic_seconds(gpu, moved, moved, figures.memory_share, figures.cache_bytes, figures.cache_held)
