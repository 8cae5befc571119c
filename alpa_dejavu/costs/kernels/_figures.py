"""The fitted figures of kernel models: declared once, and read from kernels.json."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, final

from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu.clusters.gpus import Gpu
from alpa_dejavu.costs.kernels._classes import family

FILE = Path(__file__).with_name("kernels.json")
"""The fitted figures, with their units, their origin, and their errors on what was left out of the fit."""


@final
@dataclasses.dataclass(frozen=True)
class ProductFigures:
    """The figures of matrix products in a class of dtypes on GPUs of one generation.

    Attributes:
        peak_share: the share of the data sheet's rate that tiles of 256 by 128 reach at full clock.
        tile_loss: the further time that smaller tiles take: a tile of 64 by 64 loses twice as much.
        prologue: the contracted elements in whose time a tile starts and ends.
        tail: how much of a last wave that isn't full is waited for; 0: none of it, 1: all of it.
        floor_clocks: the clock cycles of any product, its launch included; 0: a launch that `Device.kernel_s` has.
        cast_clocks: the clock cycles of the further launches that cast operands.
        cast_bytes: the bytes that casting moves for each element of the left operand.
        memory_share: the share of the memory's rate that products reach.
        cache_bytes: the bytes per clock cycle that a multiprocessor moves from and to the L2 cache.
        cache_held: the share of the L2 cache by whose size half of the traffic goes through memory.
        write_weight: how many bytes that are read take as long as one that is written.
        energy_j: the joules of an operation at 1.83 GHz, by which a GPU at its power limit lowers its clock.
    """

    peak_share: float
    tile_loss: float
    prologue: float
    tail: float
    floor_clocks: float
    cast_clocks: float
    cast_bytes: float
    memory_share: float
    cache_bytes: float
    cache_held: float
    write_weight: float
    energy_j: float


@final
@dataclasses.dataclass(frozen=True)
class AttentionFigures:
    """The figures of the forward pass of fused attention in half precision on GPUs of one generation.

    Attributes:
        peak_share: the share of the data sheet's rate that its products reach beside nothing else.
        prologue: the keys in whose time a tile of queries starts and ends.
        exponential: the time of a score's exponential, in sixteenths of a multiprocessor's clock cycle.
        tail: the share of the longest tile's time for which multiprocessors wait at the end.
        padded: how much of the way to the next power of two the size of a head is padded; 0: none of it, 1: all of it.
        odd: the further time of heads whose size is no multiple of 16, as a share of the whole.
        floor_clocks: the clock cycles of any pass, its launch included.
        memory_share: the share of the memory's rate at which operands are read and written.
        prepare_clocks: the further clock cycles where a kernel before it prepares operands.
        prepare_passes: how often that kernel moves all operands.
    """

    peak_share: float
    prologue: float
    exponential: float
    tail: float
    padded: float
    odd: float
    floor_clocks: float
    memory_share: float
    prepare_clocks: float
    prepare_passes: float


@final
@dataclasses.dataclass(frozen=True)
class GroupedFigures:
    """The figures of grouped products of experts in a class of dtypes on GPUs of one generation.

    Attributes:
        product_time: the time of grouped products relative to that of a batch of products.
        floor_s: the seconds of any gated feed-forward layer of experts: its launches and its routing.
        activation_passes: how often the activations between both products go through memory.
        pair_passes: how often what experts take and return goes through memory as it is dealt out and collected.
        token_passes: how often the tokens of all devices go through memory.
        expert_s: the seconds that each expert with tokens adds.
    """

    product_time: float
    floor_s: float
    activation_passes: float
    pair_passes: float
    token_passes: float
    expert_s: float


@final
@dataclasses.dataclass(frozen=True)
class StreamFigures:
    """The figures of operators that are bound by memory on GPUs of one generation.

    Attributes:
        memory_share: the share of the memory's rate that loops over elements reach.
        row_share: the share of that rate that normalisations of rows reach, which read them more than once.
        cache_bytes: the bytes per clock cycle that a multiprocessor moves from and to the L2 cache.
        cache_held: the share of the L2 cache by whose size half of the traffic goes through memory.
    """

    memory_share: float
    row_share: float
    cache_bytes: float
    cache_held: float


Figures = TypeVar("Figures", ProductFigures, AttentionFigures, GroupedFigures, StreamFigures)


@final
@dataclasses.dataclass(frozen=True)
class LeftOut:
    """The errors on what was left out of a fit, of the logarithm of predicted over measured seconds: the median of
    absolute relative errors; the standard deviations of what all kernels of a GPU have in common, and of a kernel's own
    part; and the median of absolute relative errors by data sheets.
    """

    median_error: float
    common: float
    own: float
    sheets: float = math.inf


@final
@dataclasses.dataclass(frozen=True)
class Fitted(Generic[Figures]):
    """Figures of one kind of kernel by generation, and under "synchronous" and "asynchronous" those that generations
    with such tensor cores have in common; the names of the GPUs that were measured; and the errors on GPUs, and on
    shapes of measured GPUs, that were left out.
    """

    figures: Mapping[str, Figures] = dataclasses.field(hash=False)
    gpus: tuple[str, ...]
    gpu: LeftOut
    shapes: LeftOut

    def of(self, gpu: Gpu) -> Figures:
        """Returns the figures of a GPU: its generation's, or what those with such tensor cores have in common."""
        return self.figures[gpu.generation] if self.is_measured(gpu) else self.figures[family(gpu.generation)]

    def is_measured(self, gpu: Gpu) -> bool:
        """Returns whether a GPU of the same generation was measured."""
        return gpu.generation in self.figures

    def spread(self, gpu: Gpu) -> tuple[float, float]:
        """Returns how far predictions on a GPU are off, as standard deviations of a logarithm: what its kernels have in
        common, and a kernel's own. A GPU that wasn't measured itself, of a generation that was, errs in common half as
        much as one of another generation: an assumption.
        """
        if gpu.name in self.gpus:
            return self.shapes.common, self.shapes.own
        return (self.gpu.common / 2, self.shapes.own) if self.is_measured(gpu) else (self.gpu.common, self.gpu.own)


@final
@dataclasses.dataclass(frozen=True)
class KernelFigures:
    """All figures of kernel models; those of products and of grouped ones by the class of dtypes."""

    products: Mapping[str, Fitted[ProductFigures]] = dataclasses.field(hash=False)
    attention: Fitted[AttentionFigures]
    grouped: Mapping[str, Fitted[GroupedFigures]] = dataclasses.field(hash=False)
    streams: Fitted[StreamFigures]


@functools.cache
def kernel_figures() -> KernelFigures:
    """Returns the package's fitted figures."""
    return figures_of(strict_json(FILE.read_text(encoding="utf-8")))


def figures_of(data: Mapping[str, Any]) -> KernelFigures:
    """Returns the figures that the data of a JSON file holds."""
    return KernelFigures(
        products={name: _fitted(fits, ProductFigures) for name, fits in data["products"].items()},
        attention=_fitted(data["attention"], AttentionFigures),
        grouped={name: _fitted(fits, GroupedFigures) for name, fits in data["grouped"].items()},
        streams=_fitted(data["streams"], StreamFigures),
    )


def _fitted(data: Mapping[str, Any], kind: type[Figures]) -> Fitted[Figures]:
    figures = {name: kind(**values) for name, values in data["figures"].items()}
    errors = data["left_out"]
    return Fitted(figures, tuple(data["gpus"]), LeftOut(**errors["gpu"]), LeftOut(**errors["shapes"]))
