"""Measured kernels as what models of them predict, and what is thought of these models' figures before."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from alpa_dejavu.clusters.gpus import Gpu, gpu_of
from alpa_dejavu.costs.kernels import (
    AttentionFigures,
    AttentionSizes,
    ExpertFigures,
    ExpertTokens,
    ProductFigures,
    StreamFigures,
    attention_seconds,
    dtype_class,
    product_seconds,
    stream_seconds,
)
from alpa_dejavu.problem import FusedAttention
from published._experts import experts_seconds, tokens_of_fullest
from published._folder import Folder
from published._jobs import gpu_named
from published._kernel_fit import Kernels, Prior

__all__ = [
    "ATTENTION", "GROUPED", "GROUPED_APART", "NOISE", "PRODUCTS", "STREAMS", "Measured", "attention", "experts",
    "products", "streams", "v100_products", "vector_products",
]  # fmt: skip

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
_V100 = "V100-SXM2-16GB"
_DTYPES = {"fp8": "float8", "bf16": "bfloat16", "fp16": "float16"}
_LAUNCH = 0.9
"""The part of the shortest time of any product that counts as the launch from Python, or from a profiler's program."""
_OVERLAPPED, _LONG = 0.4, 5.0
"""The part of the shortest time that a launch adds to streams, which overlaps more of it, and how many times longer
than the shortest those are that a fit is about."""

_PRODUCTS = {
    "peak_share": Prior(0.9, 0.4, True), "tile_loss": Prior(0.2, 0.5), "prologue": Prior(120, 0.4),
    "tail": Prior(0.5, 0.6, True), "floor_clocks": Prior(4700, 0.1), "cast_clocks": Prior(0, 0),
    "cast_bytes": Prior(0, 0), "memory_share": Prior(0.8, 0.4, True), "cache_bytes": Prior(16, 0.3),
    "cache_held": Prior(0.6, 0.4), "write_weight": Prior(1.1, 0.15), "energy_j": Prior(8.4e-13, 0.15),
}  # fmt: skip
PRODUCTS: dict[str, dict[str, Prior]] = {
    "half": _PRODUCTS,
    "float8": _PRODUCTS
    | {"cast_clocks": Prior(20000, 0.15), "cast_bytes": Prior(6, 0.3), "energy_j": Prior(4.2e-13, 0.15)},
    "float32": _PRODUCTS | {"floor_clocks": Prior(0, 0), "prologue": Prior(60, 0.4), "energy_j": Prior(4e-12, 0.5)},
}
"""The prior figures of products, by the class of dtypes: of the order of data sheets and of what
microbenchmarks say. An operation in 8 bits takes half the energy of one in 16, and one outside of tensor cores five
times as much."""
ATTENTION = {
    "peak_share": Prior(0.6, 0.35, True), "prologue": Prior(200, 0.3), "exponential": Prior(1.2, 0.4),
    "tail": Prior(0.5, 0.5, True), "padded": Prior(0.5, 0.7, True), "odd": Prior(0.4, 1.0),
    "floor_clocks": Prior(14000, 0.3), "memory_share": Prior(0.75, 0.3, True), "prepare_clocks": Prior(8000, 0.4),
    "prepare_passes": Prior(1.5, 0.25),
}  # fmt: skip
GROUPED = {
    "product_time": Prior(1.0, 0.3), "floor_s": Prior(3.3e-5, 0.5), "activation_passes": Prior(2, 0.4),
    "pair_passes": Prior(3, 0.4), "token_passes": Prior(2.5, 0.4), "expert_s": Prior(1e-7, 1.0),
}  # fmt: skip
GROUPED_APART = 0.3
"""How far families of tensor cores are apart: what grouped products add to products is their library's."""
STREAMS = {
    "memory_share": Prior(0.8, 0.3, True), "row_share": Prior(0.6, 0.3, True), "cache_bytes": Prior(25.6, 0),
    "cache_held": Prior(1.0, 0),
}  # fmt: skip
"""Launches from Python hide what the L2 cache is worth: its figures are those of microbenchmarks of A100 and H100."""
NOISE = {"products": 0.05, "attention": 0.05, "grouped": 0.08, "streams": 0.05, "float32": 0.08}
"""The error of the models in the logarithm of a kernel's seconds, about."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """The kernels of one kind that were measured on one GPU in one class of dtypes.

    Attributes:
        shapes: a number for each kernel that those of the same sizes have in common, on all GPUs, shape (kernels,).
        measured_s: their seconds, shape (kernels,).
        sheet_s: their seconds by the data sheet, as a roofline, shape (kernels,).
        seconds: what figures predict of the kernels of a mask, shape (kernels of the mask,).
    """

    gpu: Gpu
    dtypes: str
    shapes: NDArray[np.intp]
    measured_s: Array
    sheet_s: Array
    seconds: Callable[[Any, Mask], Array]

    def kernels(self, chosen: Mask | None = None, given: Callable[[Gpu], Any] | None = None) -> Kernels[Any]:
        """Those of a mask, or all, for a fit; `given` makes the figures that they go by of those that are fitted."""
        mask = np.ones(len(self.measured_s), dtype=np.bool_) if chosen is None else chosen
        make = (lambda figures: figures) if given is None else given(self.gpu)
        return Kernels(self.gpu.generation, lambda figures: self.seconds(make(figures), mask), self.measured_s[mask])


def products(folder: Path) -> list[Measured]:
    """The matrix products of a folder's gemm.csv."""
    table = Folder(folder).table("gemm.csv", ("gpu", "dtype"), ("m", "n", "k", "time_s"))
    return list(_by_gpu(table, ["m", "n", "k"], _product_group))


def attention(folder: Path) -> list[Measured]:
    """The forward passes of fused attention of a folder's attention.csv."""
    sizes = ("causal", "batch", "tokens", "heads", "kv_heads", "head_dim")
    return list(_by_gpu(Folder(folder).table("attention.csv", ("gpu", "dtype"), (*sizes, "time_s")), list(sizes),
                        _attention_group))  # fmt: skip


def experts(folder: Path) -> list[Measured]:
    """The feed-forward layers of experts of a folder's moe.csv."""
    sizes = ("tokens", "hidden", "ffn", "top_k", "experts", "expert_tp", "expert_parallel")
    table = Folder(folder).table("moe.csv", ("gpu", "dtype", "load"), (*sizes, "time_s"))
    return list(_by_gpu(table, [*sizes, "load"], _experts_group))


def vector_products(train: Path) -> list[Measured]:
    """NeuSight's products in single precision, without tensor cores on A100 too."""
    groups = _by_gpu(_neusight(train, ("linear", "bmm"), _LAUNCH), ["op", "batch", "m", "n", "k"], _vector_group)
    return [dataclasses.replace(group, dtypes="float32") for group in groups]


def streams(train: Path) -> list[Measured]:
    """NeuSight's loops over elements and normalisations of rows, but for those that are little more than a launch."""
    table = _neusight(train, ("add", "mul", "gelu", "relu", "tanh", "softmax", "ln"), _OVERLAPPED)
    long = table["time_s"] > _LONG / _OVERLAPPED * table["launch_s"]
    return list(_by_gpu(table[long].reset_index(drop=True), ["op", "batch", "n"], _stream_group))


def v100_products(train: Path) -> list[Measured]:
    """The products in half precision of Alpa's profile of V100, which are square."""
    table = Folder(train).table("alpa-p3.16xlarge/dot.csv", ("dtype",), ("flop", "time_s"))
    table = table[(table["dtype"] == "f16") & (table["flop"] >= 1e9)].assign(gpu=_V100)
    side = np.cbrt(table["flop"] / 2)
    table = table.assign(m=side, n=side, k=side, dtype="float16", launch_s=_LAUNCH * table["time_s"].min())
    return list(_by_gpu(table.reset_index(drop=True), ["m", "n", "k"], _product_group))


def _by_gpu(
    table: pd.DataFrame, sizes: list[str], group: Callable[[Gpu, str, pd.DataFrame], tuple[Any, Array]]
) -> Iterator[Measured]:
    """The table's groups; rows without a positive time aren't among them."""
    table = table[table["time_s"] > 0].reset_index(drop=True)
    shapes = table.groupby(sizes, sort=True).ngroup().to_numpy()
    for (name, written), rows in table.groupby(["gpu", "dtype"], sort=True):
        gpu, dtype = gpu_of(str(name)) or gpu_named(str(name)), _DTYPES.get(str(written), str(written))
        seconds, sheet_s = group(gpu, dtype, rows)
        places = rows.index.to_numpy()
        measured_s = rows["time_s"].to_numpy(float)
        yield Measured(gpu, dtype_class(gpu, dtype), shapes[places], measured_s, sheet_s, seconds)


def _columns(rows: pd.DataFrame, *names: str) -> list[Array]:
    return [rows[name].to_numpy(float) for name in names]


def _product_group(gpu: Gpu, dtype: str, rows: pd.DataFrame) -> tuple[Any, Array]:
    m, n, k = _columns(rows, "m", "n", "k")
    sizes = np.stack([np.ones(len(rows)), m, n, k], axis=1)
    launch_s = _columns(rows, "launch_s")[0] if "launch_s" in rows else np.zeros(len(rows))

    def seconds(figures: ProductFigures, chosen: Mask) -> Array:
        return product_seconds(gpu, dtype, figures, sizes[chosen]) + launch_s[chosen]

    width = 1 if dtype == "float8" else 2
    return seconds, _roofline(gpu, dtype, 2 * m * n * k, width * (m * k + k * n) + 2 * m * n)


def _vector_group(gpu: Gpu, dtype: str, rows: pd.DataFrame) -> tuple[Any, Array]:
    batch, m, n, k, launch_s = _columns(rows, "batch", "m", "n", "k", "launch_s")
    sizes = np.stack([batch, m, n, k], axis=1)

    def seconds(figures: ProductFigures, chosen: Mask) -> Array:
        return product_seconds(gpu, dtype, figures, sizes[chosen], rate=gpu.vector_flop_per_s) + launch_s[chosen]

    return seconds, _roofline(gpu, dtype, 2 * batch * m * n * k, 4 * batch * (m * k + k * n + m * n))


def _stream_group(gpu: Gpu, dtype: str, rows: pd.DataFrame) -> tuple[Any, Array]:
    batch, n, launch_s = _columns(rows, "batch", "n", "launch_s")
    num_bytes = 4 * batch * n * np.where(rows["op"].isin(["add", "mul"]), 3, 2)
    is_row = rows["op"].isin(["softmax", "ln"]).to_numpy()

    def seconds(figures: StreamFigures, chosen: Mask) -> Array:
        loops, norms = (stream_seconds(gpu, figures, num_bytes[chosen], rows=norm) for norm in (False, True))
        return np.where(is_row[chosen], norms, loops) + launch_s[chosen]

    return seconds, num_bytes / gpu.memory_bytes_per_s


def _attention_group(gpu: Gpu, dtype: str, rows: pd.DataFrame) -> tuple[Any, Array]:
    batch, tokens, heads, kv_heads, head_dim, causal = _columns(
        rows, "batch", "tokens", "heads", "kv_heads", "head_dim", "causal"
    )
    columns, masked = (batch, tokens, tokens, heads, kv_heads, head_dim), causal == 1

    def seconds(figures: AttentionFigures, chosen: Mask) -> Array:
        sizes = AttentionSizes(*(column[chosen] for column in columns))
        ways = [
            attention_seconds(gpu, figures, sizes, FusedAttention(causal=way), dtype=dtype, prepare=True)
            for way in (False, True)
        ]
        return np.where(masked[chosen], ways[1], ways[0])

    flop = 4 * batch * heads * tokens**2 * head_dim * np.where(masked, 0.5, 1)
    return seconds, _roofline(gpu, dtype, flop, 4 * batch * tokens * head_dim * (heads + kv_heads))


def _experts_group(gpu: Gpu, dtype: str, rows: pd.DataFrame) -> tuple[Any, Array]:
    counts = rows[["tokens", "top_k", "experts", "expert_parallel"]].astype(int).itertuples(index=False, name=None)
    dealt = [
        tokens_of_fullest(whole, top_k, number, devices, _exponent(load))
        for (whole, top_k, number, devices), load in zip(counts, rows["load"], strict=True)
    ]
    held = [np.concatenate([getattr(each, name) for each in dealt]) for name in ("tokens", "experts", "row_tiles")]
    tokens, hidden, ffn, expert_tp = _columns(rows, "tokens", "hidden", "ffn", "expert_tp")
    ffn = ffn / expert_tp

    def seconds(figures: ExpertFigures, chosen: Mask) -> Array:
        dealt_tokens = ExpertTokens(*(column[chosen] for column in held))
        return experts_seconds(gpu, dtype, figures, dealt_tokens, tokens[chosen], hidden[chosen], ffn[chosen])

    width = 1 if dtype == "float8" else 2
    moved = 3 * width * held[1] * hidden * ffn + 2 * held[0] * (2 * hidden + 3 * ffn)
    return seconds, _roofline(gpu, dtype, 6 * held[0] * hidden * ffn, moved)


def _exponent(load: str) -> float:
    """The exponent of a load's power law: "power_law_1.2" has 1.2, "balanced" 0.

    Raises:
        ValueError: it is neither.
    """
    if load == "balanced":
        return 0.0
    try:
        return float(load.removeprefix("power_law_"))
    except ValueError:
        raise ValueError(f"load is {load!r}, but must be 'balanced' or 'power_law_' and an exponent") from None


def _roofline(gpu: Gpu, dtype: str, flop: Array, moved: Array) -> Array:
    rate = gpu.flop_per_s.get(dtype, gpu.flop_per_s["float32"])
    return np.maximum(flop / rate, moved / gpu.memory_bytes_per_s)


@functools.cache
def _neusight(train: Path, ops: tuple[str, ...], launch: float) -> pd.DataFrame:
    """Rows of single kernels; `launch_s` is a part of the shortest time of an operator's on a GPU."""
    table = Folder(train).table("neusight-kernels/kernels.csv", ("op", "gpu"), ("batch", "m", "n", "k", "latency_s"))
    table = table[table["op"].isin(ops)].reset_index(drop=True)
    shortest = table.groupby(["gpu", "op"])["latency_s"].transform("min")
    return table.assign(
        gpu=table["gpu"].map(_NEUSIGHT), dtype="float32", time_s=table["latency_s"], launch_s=launch * shortest
    )


_NEUSIGHT: Mapping[str, str] = {
    "a100-pcie-40gb": "A100-PCIE-40GB", "p100-pcie-16gb": "P100-PCIE-16GB", "p4": "P4", "t4": "T4",
    "v100-pcie-32gb": "V100-PCIE-32GB",
}  # fmt: skip
