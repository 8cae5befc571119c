"""Layers of experts as they were measured: grouped products with what deals tokens out, and loads by a power law."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.clusters.gpus import Gpu
from alpa_dejavu.costs.kernels import (
    HEIGHTS,
    ExpertFigures,
    ExpertTokens,
    grouped_seconds,
    grouped_traffic_seconds,
    width_bytes,
)

Array = NDArray[np.float64]
_DRAWS = 64
_LARGEST = 0.8
"""The part of a batch's tokens that the most loaded expert may be drawn to have."""


def experts_seconds(
    gpu: Gpu, dtype: str, figures: ExpertFigures, tokens: ExpertTokens, all_tokens: Array, hidden: Array, ffn: Array
) -> Array:
    """Returns the seconds of gated feed-forward layers of experts on a device, shape (layers,): both grouped products,
    the activation between them, and the dealing out and collecting of tokens.

    Args:
        tokens: the tokens of the device's experts.
        all_tokens: the tokens of all devices among which experts are divided, shape (layers,).
        hidden: the elements of a token, shape (layers,).
        ffn: the device's columns of each of an expert's two first matrices, shape (layers,).
    """
    between = 2 * 3 * tokens.tokens * ffn
    dealt, whole = 2 * tokens.tokens * hidden, 2 * all_tokens * hidden
    # All is used again by the next layer alone, so that matrices and tokens share the cache.
    set_bytes = width_bytes(dtype) * 3 * tokens.experts * hidden * ffn + between + 2 * (dealt + whole)
    grouped = figures.grouped
    first = grouped_seconds(gpu, dtype, figures, tokens, hidden, 2 * ffn, set_bytes)
    second = grouped_seconds(gpu, dtype, figures, tokens, ffn, hidden, set_bytes)
    passes = (
        grouped.activation_passes * grouped_traffic_seconds(gpu, figures, between, set_bytes)
        + grouped.pair_passes * grouped_traffic_seconds(gpu, figures, dealt, set_bytes)
        + grouped.token_passes * grouped_traffic_seconds(gpu, figures, whole, set_bytes)
    )
    launches_s = 2 * figures.products.floor_clocks / gpu.clock_hz
    return first + second - launches_s + passes + grouped.floor_s + grouped.expert_s * tokens.experts


def tokens_of_fullest(tokens: int, top_k: int, experts: int, expert_parallel: int, exponent: float) -> ExpertTokens:
    """Returns the tokens of the most loaded of the devices among which experts are divided, as one row.

    Args:
        exponent: of the power law that the experts' loads follow, between one token and most of them; 0: all experts
            have equally many.
    """
    pairs, used, row_tiles = _fullest(tokens, top_k, experts, expert_parallel, exponent)
    return ExpertTokens(np.array([pairs]), np.array([used]), np.array([row_tiles]))


@functools.lru_cache(maxsize=1 << 14)
def _fullest(
    tokens: int, top_k: int, experts: int, expert_parallel: int, exponent: float
) -> tuple[float, float, tuple[float, ...]]:
    if exponent == 0:
        even = ExpertTokens.balanced(
            np.array([tokens * top_k / expert_parallel]), np.array([experts / expert_parallel])
        )
        return float(even.tokens[0]), float(even.experts[0]), tuple(even.row_tiles[0].tolist())
    loads = _loads(tokens, top_k, experts, exponent).reshape(_DRAWS, expert_parallel, experts // expert_parallel)
    fullest = loads[np.arange(_DRAWS), loads.sum(axis=2).argmax(axis=1)]
    row_tiles = np.ceil(fullest[:, :, None].round(3) / HEIGHTS).sum(axis=1).mean(axis=0)
    # Loads below one token are the chance of one.
    used = (1 - np.exp(-fullest)).sum(axis=1).mean()
    return float(fullest.sum(axis=1).mean()), float(used), tuple(row_tiles.tolist())


def _loads(tokens: int, top_k: int, experts: int, exponent: float) -> Array:
    """Loads of experts, drawn several times by a fixed seed, shape (draws, experts)."""
    least, most = (1.0, max(_LARGEST * tokens, 2.0)) if tokens * top_k > experts else (0.01, 2.0)
    power = 1 - exponent
    ends = least**power, most**power
    drawn = (ends[0] + (ends[1] - ends[0]) * np.random.default_rng(0).random((_DRAWS, experts))) ** (1 / power)
    loads = drawn / drawn.sum(axis=1, keepdims=True) * tokens * top_k
    for _ in range(4):  # No expert has a token twice: what it would have goes to the others.
        loads = np.minimum(loads, tokens)
        open_loads = np.where(loads < tokens, loads, 0.0)
        left = tokens * top_k - loads.sum(axis=1, keepdims=True)
        loads = loads + open_loads * left / np.maximum(open_loads.sum(axis=1, keepdims=True), 1e-9)
    return np.asarray(loads)
