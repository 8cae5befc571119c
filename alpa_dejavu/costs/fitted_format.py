"""Fitted models in calibrations as declared types: every key, and what it must be.

Lengths that other values say, and where trees lead, are checked by who makes the models.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator
from typing_extensions import TypedDict

from alpa_dejavu._util.format_fields import Count, Index, Words, listed, said

_MOST = 1e300


def _lower_first(ends: list[float]) -> list[float]:
    if ends[0] > ends[1]:
        raise ValueError(f"{ends[0]:g} is above {ends[1]:g}")
    return ends


_Number: TypeAlias = Annotated[float, said("a finite number", ge=-_MOST, le=_MOST)]
_LogSeconds: TypeAlias = Annotated[float, said("a finite number: a logarithm of seconds", ge=-_MOST, le=_MOST)]
_LogRatio: TypeAlias = Annotated[float, said("a finite number: a logarithm of a ratio", ge=-_MOST, le=_MOST)]
_LogRatios: TypeAlias = Annotated[list[_LogRatio], listed("a list of logarithms of ratios")]
_Numbers: TypeAlias = Annotated[list[_Number], listed("a list of numbers")]
_SecondsAbove0: TypeAlias = Annotated[float, said("seconds above 0", gt=0, le=_MOST)]
_Share: TypeAlias = Annotated[float, said("a share, from 0 to 1", ge=0, le=1)]
_Places: TypeAlias = Annotated[list[Index], listed("a list of whole numbers of at least 0")]
_Kinds: TypeAlias = Annotated[list[Words], listed("a list of the names of kinds of kernels")]
_Interval: TypeAlias = Annotated[
    list[_LogRatio],
    listed("a list of the two ends of an interval, the lower one first", min_length=2, max_length=2),
    AfterValidator(_lower_first),
]
_Deviations: TypeAlias = Annotated[
    list[_LogRatio],
    listed("a list of three numbers: of products, of traffic and of exchange", min_length=3, max_length=3),
]
_Collective: TypeAlias = Annotated[
    Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter"],
    said("all_gather, all_reduce, all_to_all or reduce_scatter"),
]
_Floors: TypeAlias = Annotated[list[_SecondsAbove0], listed("a list of seconds, at least one", min_length=1)]
FloorsData: TypeAlias = Annotated[
    dict[str, _Floors], said("an object of the seconds of launches on each GPU by kind of kernel", min_length=1)
]


class StreamsData(TypedDict):
    """The JSON form of `Streams`, a model of kernels that stream: after `ops` each list has a number for each kind."""

    ops: _Kinds
    starts: Annotated[list[_LogSeconds], listed("a list of logarithms of seconds")]
    shares: _LogRatios
    sharpness: _Number
    of_rate: _Number
    of_length: _Number


class TilesData(TypedDict):
    """The JSON form of `Tiles`: the parameters of one kind of matrix product."""

    start: _LogSeconds
    sharpness: _Number
    slowdown: _LogRatio
    of_traffic: _LogRatio
    rounding: _Number
    of_start_k: _Number
    of_split: _LogRatio
    of_bandwidth: _Number
    of_balance: _Number
    of_reads: _LogRatio
    of_cache: _Number
    overlap: _Number
    tile_1024: _LogRatio
    tile_2048: _LogRatio
    tile_4096: _LogRatio
    tile_8192: _LogRatio
    tile_16384: _LogRatio


class ForestData(TypedDict):
    """The JSON form of `Forest`, a sum of decision trees: after `roots` each list has a number for each node."""

    base: _LogRatio
    roots: _Places
    feature: _Places
    threshold: _Numbers
    left: _Places
    right: _Places
    value: _LogRatios


_OfGpu: TypeAlias = Annotated[
    list[_Number],
    listed("a list of the size of transistors, 0 if unknown, and a logarithm of a ratio", min_length=2, max_length=2),
]
_OfGpus: TypeAlias = Annotated[list[_OfGpu], listed("a list of the figures of GPUs, at least one", min_length=1)]


class ShapesData(TypedDict):
    """The JSON form of `ShapeTrees`, a model of matrix products by their shapes."""

    of_gpu: Annotated[bool, said("true or false")]
    offsets: Annotated[dict[str, _OfGpus], said("an object of lists of GPUs' figures by product", min_length=1)]
    trees: ForestData


_Form: TypeAlias = Annotated[
    list[Annotated[float, said("a number of at least 0", ge=0, le=_MOST)]],
    listed("a list of a form's share of tiles, its likeness and its weight", min_length=3, max_length=3),
]


class ProductsData(TypedDict):
    """The JSON form of `ProductModels`: tiles and trees, and how much each form of joining them weighs."""

    forms: Annotated[list[_Form], listed("a list of forms, at least one", min_length=1)]
    tiles: Annotated[dict[str, TilesData], said("an object of models of tiles by kind of product", min_length=1)]
    shapes: ShapesData


class KernelPartsData(TypedDict):
    """The JSON form of the models of all classes of kernels."""

    ops: _Kinds
    floors: FloorsData
    streams: Annotated[dict[str, StreamsData], said("an object of models of what streams by class of kernel")]
    products: Annotated[ProductsData | None, said("an object of the models of matrix products, or null")]


class KernelsData(TypedDict):
    """The JSON form of `KernelModel`, a fitted model of kernels' latencies."""

    models: KernelPartsData
    ends: Annotated[dict[str, _Interval], said("an object of intervals by class of kernel and what decides")]
    widest: _Interval
    common_variance: Annotated[dict[str, _Share], said("an object of shares by class of kernel")]
    most_s: _SecondsAbove0


class SharedLayersData(TypedDict):
    """The JSON form of the parameters of `BlockModel` that transformer layers have in common on all GPUs."""

    floor_s: _LogSeconds
    block_products: _LogRatio
    block_traffic: _LogRatio
    block_exchange: _LogRatio
    head_products: _LogRatio
    head_traffic: _LogRatio
    head_exchange: _LogRatio
    message_s: _LogSeconds
    through_host: _LogRatio
    tensor_cores: _LogRatio


class LayersData(TypedDict):
    """The JSON form of `BlockModel`, a fitted model of transformer layers' latencies."""

    shared: SharedLayersData
    deviations: Annotated[dict[str, _Deviations], said("an object of deviations by GPU")]
    ends: _Interval


CollectiveEndsData = TypedDict("CollectiveEndsData", {"seen sizes": _Interval, "other sizes": _Interval})


class CollectivesData(TypedDict):
    """The JSON form of `FittedCollectives`, a fitted model of collectives."""

    collectives: Annotated[list[_Collective], listed("a list of the names of collectives, at least one", min_length=1)]
    values: _Numbers
    ends: CollectiveEndsData
    sizes: Annotated[list[Count], listed("a list of sizes of groups, at least one", min_length=1)]
    most_bytes: Annotated[float, said("bytes above 0", gt=0, le=_MOST)]
    outliers: _Places
