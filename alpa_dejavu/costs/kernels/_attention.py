"""Fused attention: tiles of queries over the multiprocessors, products beside exponentials, and bytes."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np

from alpa_dejavu.clusters.gpus import Gpu
from alpa_dejavu.costs.kernels._classes import matrix_rate, width_bytes
from alpa_dejavu.costs.kernels._figures import AttentionFigures
from alpa_dejavu.costs.kernels._products import Array, longer_of
from alpa_dejavu.problem import FusedAttention

_QUERIES = 128.0
"""The queries of a tile."""
_EXPONENTIALS = 16.0
"""The exponentials that a multiprocessor computes in a clock cycle, on all generations."""
LARGEST_HEAD = 256
_LARGEST_HEADS = {"blackwell": 512}
_WITHOUT = ("pascal", "volta", "turing")
"""The generations that cuDNN and FlashAttention-2 have no kernels of fused attention for."""
BACKWARD_WORK, BACKWARD_BYTES = 2.5, 3.0
"""The operations of a backward pass relative to a forward pass: five products instead of two; and its bytes: it reads
queries, keys, values, the result and its gradient, writes three gradients, and adds one up in single precision."""
_BACKWARD = {
    # FlashAttention-3, arXiv:2407.08608, figures 5 and 6: about 640 TFLOP/s forward and 550 backward on H100, long
    # sequences, heads of 128.
    ("cudnn", "hopper"): 1.17,
    # An estimate, a little more than on Hopper: the backward pass has more exponentials and sums for each product.
    ("cudnn", "blackwell"): 1.25,
    # FlashAttention-2, arXiv:2307.08691, figures 4 to 6: about 0.6 of A100's peak forward and 0.55 backward under a
    # causal mask.
    ("flash2", "ampere"): 1.1,
    # FlashAttention-3, figure 6: about 320 TFLOP/s of FlashAttention-2 backward on H100, and 350 forward.
    ("flash2", "hopper"): 1.1,
}
"""How much longer an operation of the backward pass takes than one of the forward pass. Read off the papers' figures,
not measured here: the measurements have forward passes alone."""
_BACKWARD_USUAL = 1.15
_FLASH2 = {
    # FlashAttention-2, figure 5: about 0.6 of 312 TFLOP/s forward, causal, long sequences, heads of 128; the kernels
    # that were measured on A100 reach 0.47.
    "ampere": 0.8,
    # FlashAttention-3, figure 5: 335 to 370 TFLOP/s of FlashAttention-2 on H100, 550 to 640 of itself and of cuDNN.
    "hopper": 1.6,
    # An estimate: it runs Ampere's instructions, which Blackwell doesn't compute faster than Hopper does.
    "blackwell": 2.8,
}
"""How much longer FlashAttention 2 takes than the measured kernels; as long on other generations. Not measured here."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class AttentionSizes:
    """The sizes of passes of attention: sequences; tokens of queries, and of keys and values; heads of queries, and of
    keys and values; and the elements of a head, where values have others than keys the mean of both.
    """

    batch: Array
    tokens: Array
    keys: Array
    heads: Array
    kv_heads: Array
    head_dim: Array


def attention_seconds(
    gpu: Gpu,
    figures: AttentionFigures,
    sizes: AttentionSizes,
    kernel: FusedAttention,
    *,
    dtype: str = "bfloat16",
    prepare: bool = False,
) -> Array:
    """Returns the seconds of passes of fused attention.

    A multiprocessor computes the scores of 128 queries with one tile of keys after the other; products and exponentials
    overlap. A causal mask or a window leaves out tiles of keys; the tile of queries with the most ends last. With
    `prepare` a kernel before each forward pass turns positions and fills a cache of keys, as it was measured with
    causal masks; a training step does that elsewhere.
    """
    tiles, tile_keys = np.ceil(sizes.tokens / _QUERIES), np.ceil(sizes.keys / _QUERIES) * _QUERIES
    hidden = (tiles - 1) / 2 * _QUERIES if kernel.causal else 0.0
    of_tile = np.maximum(tile_keys - hidden, _QUERIES) + figures.prologue
    longest = tile_keys + figures.prologue
    if kernel.window:
        # The first tiles see all keys before them; those behind them the window's, and their own.
        seen = np.minimum(np.ceil(kernel.window / _QUERIES) + 1, tiles)
        mean = (seen * (seen + 1) / 2 + (tiles - seen) * seen) / tiles * _QUERIES
        of_tile, longest = (
            np.minimum(keys, of + figures.prologue) for keys, of in ((of_tile, mean), (longest, seen * _QUERIES))
        )
    work = _score_seconds(gpu, figures, sizes.head_dim, dtype, 1 + kernel.capped)
    shared = sizes.batch * sizes.heads * tiles * of_tile / gpu.num_sm
    seconds = work * _QUERIES * np.maximum(shared + figures.tail * longest, longest)
    moved = sizes.batch * sizes.head_dim * 2 * (sizes.tokens * sizes.heads + sizes.keys * sizes.kv_heads)
    moved_s = width_bytes(dtype) * moved / (gpu.memory_bytes_per_s * figures.memory_share)
    if kernel.library == "flash2":
        seconds = seconds * _FLASH2.get(gpu.generation, 1.0)
    if kernel.backward:
        slower = _BACKWARD.get((kernel.library, gpu.generation), _BACKWARD_USUAL)
        seconds, moved_s = seconds * BACKWARD_WORK * slower, moved_s * BACKWARD_BYTES
    seconds = longer_of(seconds, moved_s) + figures.floor_clocks / gpu.clock_hz
    if prepare and kernel.causal and not kernel.backward:
        seconds = seconds + figures.prepare_clocks / gpu.clock_hz + figures.prepare_passes * moved_s
    return seconds


def has_fused(gpu: Gpu) -> bool:
    """Returns whether libraries have kernels of fused attention for a GPU's generation: since Ampere they have."""
    return gpu.generation not in _WITHOUT


def check_fused(gpu: Gpu, head_dim: float) -> None:
    """Raises ValueError where no library has a kernel of fused attention for heads of this size on a GPU."""
    if not has_fused(gpu):
        raise ValueError(
            f"attention is fused, but libraries fuse it on GPUs since Ampere, and {gpu.name} is of the "
            f"{gpu.generation.capitalize()} generation; give attention='plain' (--attention plain), which prices it "
            "unfused"
        )
    largest = _LARGEST_HEADS.get(gpu.generation, LARGEST_HEAD)
    if not 0 < head_dim <= largest:
        raise ValueError(
            f"a head has {head_dim:g} elements, but libraries fuse attention of at most {largest} on {gpu.name}; give "
            "attention='plain' (--attention plain), which prices it unfused, or a model with smaller heads"
        )


def _score_seconds(gpu: Gpu, figures: AttentionFigures, head_dim: Array, dtype: str, exponentials: int) -> Array:
    """The seconds in which one multiprocessor computes a score of some exponentials, and what it adds to the result."""
    padded = head_dim + figures.padded * (2 ** np.ceil(np.log2(head_dim)) - head_dim)
    padded = padded * np.where(head_dim % 16 == 0, 1.0, 1 + figures.odd)
    products = 4 * padded / (matrix_rate(gpu, dtype) / gpu.num_sm * figures.peak_share)
    exponential = exponentials * figures.exponential / (_EXPONENTIALS * gpu.clock_hz)
    return np.asarray(np.hypot(products, exponential))
