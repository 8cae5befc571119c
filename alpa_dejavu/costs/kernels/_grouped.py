"""Grouped products of experts: a batch of products with rows of unlike numbers, and what dealing tokens out adds."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.clusters.gpus import Gpu
from alpa_dejavu.costs.kernels._classes import width_bytes
from alpa_dejavu.costs.kernels._figures import GroupedFigures, ProductFigures, StreamFigures
from alpa_dejavu.costs.kernels._products import HEIGHTS, Array, Tiles, longer_of, tiles_seconds, traffic_seconds


@final
@dataclasses.dataclass(frozen=True)
class ExpertFigures:
    """The figures that grouped products go by: their own, and those of products and streams of the same generation."""

    grouped: GroupedFigures
    products: ProductFigures
    streams: StreamFigures


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ExpertTokens:
    """How many tokens a device's experts have: all their tokens, one that goes to two experts counted twice; the
    experts that have tokens; and into how many tiles of each height these are cut.
    """

    tokens: Array
    experts: Array
    row_tiles: Tiles

    @classmethod
    def balanced(cls, tokens: Array, experts: Array) -> ExpertTokens:
        """Returns tokens that are dealt evenly to so many experts."""
        per_expert = tokens / np.maximum(experts, 1.0)
        used = np.minimum(experts, np.maximum(tokens, 1.0))
        return cls(tokens, used, used[:, None] * np.ceil(np.maximum(per_expert, 1.0)[:, None] / HEIGHTS))


def grouped_seconds(
    gpu: Gpu, dtype: str, figures: ExpertFigures, tokens: ExpertTokens, inner: Array, columns: Array,
    set_bytes: Array | None = None, *, hot: bool = False,
) -> Array:  # fmt: skip
    """Returns the seconds of products of each expert's tokens with its own matrix; results of 8-bit operands have 16
    bits. `set_bytes` are those of all that is used again before these are; None: this product's own.
    """
    work = tiles_seconds(
        gpu, dtype, figures.products, tokens.row_tiles, 2 * tokens.tokens * columns * inner, columns, inner, hot=hot
    )
    width = width_bytes(dtype)
    moved = width * (tokens.tokens + tokens.experts * columns) * inner + max(width, 2) * tokens.tokens * columns
    traffic = grouped_traffic_seconds(gpu, figures, moved, moved if set_bytes is None else set_bytes)
    launch_s = figures.products.floor_clocks / gpu.clock_hz
    return longer_of(work, traffic) * figures.grouped.product_time + launch_s


def grouped_traffic_seconds(gpu: Gpu, figures: ExpertFigures, moved: Array, set_bytes: Array) -> Array:
    """Returns the seconds in which a device with experts moves bytes, by the figures of streams; see
    `traffic_seconds`.
    """
    streams = figures.streams
    return traffic_seconds(gpu, moved, set_bytes, streams.memory_share, streams.cache_bytes, streams.cache_held)
