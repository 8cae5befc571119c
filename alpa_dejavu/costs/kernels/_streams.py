"""Operators that are bound by memory: a share of the memory's rate, and the L2 cache for what stays in it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.clusters.gpus import Gpu
from alpa_dejavu.costs.kernels._figures import StreamFigures

Array = NDArray[np.float64]


def stream_seconds(gpu: Gpu, figures: StreamFigures, num_bytes: Array, *, rows: bool = False) -> Array:
    """Returns the seconds of operators that read and write so many bytes, without their launch, shape (operators,).

    Args:
        gpu: the data sheet.
        figures: the generation's figures.
        num_bytes: the bytes that each one reads and writes, shape (operators,).
        rows: whether they are normalisations of rows, which read them more than once.
    """
    share = figures.row_share if rows else figures.memory_share
    return traffic_seconds(gpu, num_bytes, num_bytes, share, figures.cache_bytes, figures.cache_held)


def traffic_seconds(
    gpu: Gpu, num_bytes: Array, set_bytes: Array, memory_share: float, cache_bytes: float, cache_held: float
) -> Array:
    """Returns the seconds in which bytes are read and written, shape (operators,).

    The L2 cache holds the less of them, the more of it their working set takes: all bytes go through it, and those that
    it doesn't hold through memory.

    Args:
        gpu: the data sheet.
        num_bytes: the bytes that are read and written, shape (operators,).
        set_bytes: the bytes of all that is used again before these are, shape (operators,).
        memory_share: the share of the memory's rate that is reached.
        cache_bytes: the bytes per clock cycle of a multiprocessor from and to the L2 cache.
        cache_held: the share of the L2 cache by whose size half of the bytes go through memory.
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
