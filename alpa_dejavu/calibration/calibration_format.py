"""Calibrations, version 1, as a declared type: every key, and what it must be, in SI units."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator
from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import (
    WHOLE,
    Count,
    Given,
    GivenNotNegative,
    GivenPositive,
    Index,
    NotNegative,
    Number,
    Text,
    Words,
    at_most,
    file_format,
    listed,
    stated,
    whole,
)
from alpa_dejavu.clusters.machine_format import SmallProducts, Strided

_MOST = 1e300


def _lower_first(ends: list[float]) -> list[float]:
    if ends[0] > ends[1]:
        raise ValueError(f"{ends[0]:g} is above {ends[1]:g}")
    return ends


_Number: TypeAlias = Annotated[float, stated("a finite number", ge=-_MOST, le=_MOST)]
_LogRatio: TypeAlias = Annotated[float, stated("a finite number: a logarithm of a ratio", ge=-_MOST, le=_MOST)]
_Numbers: TypeAlias = Annotated[list[_Number], listed("a list of numbers")]
_Places: TypeAlias = Annotated[list[Index], listed("a list of whole numbers of at least 0")]
_Interval: TypeAlias = Annotated[
    list[_LogRatio],
    listed("a list of the two ends of an interval, the lower one first", min_length=2, max_length=2),
    AfterValidator(_lower_first),
]
_Collective: TypeAlias = Annotated[
    Literal["all_gather", "all_reduce", "all_to_all", "reduce_scatter"],
    stated("all_gather, all_reduce, all_to_all or reduce_scatter"),
]
_Spread: TypeAlias = Annotated[
    dict[str, NotNegative], stated("an object of standard deviations of logarithms by the names of figures")
]
_Figures: TypeAlias = Annotated[dict[str, Number], stated("an object of numbers by name")]
_Ratios: TypeAlias = Annotated[list[Number], listed("a list of two or more logarithms", min_length=2)]


CollectiveEndsData = TypedDict("CollectiveEndsData", {"seen sizes": _Interval, "other sizes": _Interval})


class CollectivesData(TypedDict):
    """The JSON form of `FittedCollectives`, a fitted model of collectives."""

    collectives: Annotated[list[_Collective], listed("a list of the names of collectives, at least one", min_length=1)]
    values: _Numbers
    ends: CollectiveEndsData
    sizes: Annotated[list[Count], listed("a list of sizes of groups, at least one", min_length=1)]
    most_bytes: Annotated[float, stated("bytes above 0", gt=0, le=_MOST)]
    outliers: _Places


class FitData(TypedDict):
    """The entry of a calibration file that says how well a part of it was fitted, as `Fit` has it."""

    part: Text
    origin: Annotated[str, stated("text: which measurements", min_length=1)]
    rows: Index
    left_out: NotRequired[Annotated[str, stated("text: what was left out in turn")]]
    held_out: NotRequired[_Figures]
    figures: NotRequired[_Figures]


class CurveData(TypedDict):
    """The curve of a calibration file that corrects a device's predicted seconds of matrix products by their size."""

    level: Given
    slope: Given
    bend: Given
    least_flop: GivenPositive
    most_flop: GivenPositive


class MeasuredDeviceData(TypedDict):
    """The measured figures of a device in a calibration file, as `Device` has them."""

    name: Text
    memory_bytes: GivenPositive
    flop_per_s: Annotated[dict[str, GivenPositive], stated("an object of rates by dtype")]
    vector_flop_per_s: GivenPositive
    memory_bytes_per_s: GivenPositive
    kernel_s: NotRequired[GivenNotNegative]
    dispatch_s: NotRequired[GivenNotNegative]
    step_s: NotRequired[GivenNotNegative]
    small_products: NotRequired[SmallProducts]
    transcendental_flop: NotRequired[GivenPositive]
    dilated_flop_per_s: NotRequired[GivenPositive]
    extreme_flop_per_s: NotRequired[GivenPositive]
    strided: NotRequired[Strided]
    uncached_bytes_per_s: NotRequired[GivenPositive]
    crowding: NotRequired[GivenPositive]
    origin: NotRequired[Words]


class LinkFiguresData(TypedDict):
    """The latencies and rates of a link in a calibration file, as `Link` has them; any number is taken here."""

    latency_s: Given
    bytes_per_s: Given
    send_latency_s: NotRequired[Given]
    send_bytes_per_s: NotRequired[Given]
    pair_bytes_per_s: NotRequired[Given]
    cached_bytes_per_s: NotRequired[Given]
    cached_bytes: NotRequired[Given]


class SharedLinkData(LinkFiguresData):
    """The figures of a link in a calibration file, with the names of the media that it shares with other links."""

    shares: NotRequired[Annotated[list[Text], listed("a list of the names of what the link shares")]]


_LINK = "an object with the figures of a link"


class MeasuredLinkData(TypedDict):
    """The measured link between two kinds of devices in a calibration file, with the spreads of its figures."""

    devices: Annotated[
        list[Words], listed("a list of the two kinds of devices at its ends", min_length=2, max_length=2)
    ]
    within: Annotated[bool, stated("true (both ends in one host) or false")]
    link: Annotated[LinkFiguresData, stated(_LINK)]
    spread: NotRequired[_Spread]


class LogRatiosData(TypedDict):
    """Logarithms of measured over predicted bytes of memory, in a calibration file: of the peak, or of its parts."""

    peak: NotRequired[_Ratios]
    resident: NotRequired[_Ratios]
    per_micro_batch: NotRequired[_Ratios]
    temporary: NotRequired[_Ratios]


class MemoryResidualsData(TypedDict):
    """The measured peaks of memory in a calibration file, against the predicted ones, as `MemoryResiduals` has them."""

    log_ratios: Annotated[
        LogRatiosData,
        stated('an object of logarithms of measured over counted bytes, under "peak" or by what they are for'),
    ]
    num_groups: Annotated[int, whole("a whole number of at least 1", 1), WHOLE]
    origin: Annotated[str, stated("text: what was measured, and by whom")]
    framework: Annotated[str, stated("text: what ran while it was measured", min_length=1)]


_RowOfKinds: TypeAlias = Annotated[
    list[Annotated[Index | None, stated("a whole number of at least 0, or null")]],
    listed("a list with the number of a kind for each host, and null for itself"),
]


class HostLinksData(TypedDict):
    """The links between a cluster's hosts in a calibration file: each kind of link once, and which of them goes from
    host to host.
    """

    hosts: Annotated[list[Text], listed("a list of the hosts' names", min_length=1)]
    kinds: Annotated[list[Annotated[SharedLinkData, stated(_LINK)]], listed("a list of links")]
    links: Annotated[list[_RowOfKinds], listed("a list with a row for each host")]
    media: NotRequired[
        Annotated[dict[str, GivenPositive], stated("an object of bytes per second by the names of what links share")]
    ]


class MeasuredHostMemoryData(TypedDict):
    """The measured memory of a kind of host in a calibration file, as `MeasuredHostMemory` has it."""

    num_bytes: NotRequired[GivenPositive]
    bytes_per_s: NotRequired[GivenPositive]
    device_bytes_per_s: NotRequired[GivenPositive]
    shared_bytes_per_s: NotRequired[GivenPositive]
    read_bytes_per_s: NotRequired[GivenPositive]
    write_bytes_per_s: NotRequired[GivenPositive]
    free_bytes: NotRequired[GivenPositive]
    folder: NotRequired[Text]
    stand_in: Annotated[bool, stated("true (the devices are parts of the host's processors) or false")]
    spread: NotRequired[_Spread]
    slowdown: NotRequired[_Figures]


_Fit: TypeAlias = Annotated[FitData, stated("an object that says how well a part was fitted")]
_Curve: TypeAlias = Annotated[CurveData, stated("an object with level, slope, bend, least_flop and most_flop")]
_Curves: TypeAlias = Annotated[dict[str, _Curve], stated("an object of curves by dtype"), at_most(100)]
_Device: TypeAlias = Annotated[MeasuredDeviceData, stated("an object with the figures of a device")]
_KindOfLink: TypeAlias = Annotated[MeasuredLinkData, stated("an object with a kind of link and its figures")]
_Residuals: TypeAlias = Annotated[
    MemoryResidualsData, stated("an object with measured peaks of memory: log_ratios, num_groups, origin and framework")
]
_HostLinks: TypeAlias = Annotated[
    HostLinksData, stated("an object with hosts, kinds of links, and which of these goes from host to host")
]
_HostMemory: TypeAlias = Annotated[MeasuredHostMemoryData, stated("an object with the figures of a host's memory")]
_HostMemories: TypeAlias = Annotated[
    dict[str, _HostMemory], stated("an object of measured memory of hosts by the names of their devices"), at_most(1000)
]


@file_format
class CalibrationData(TypedDict):
    """A calibration file: what was learned of some kinds of devices and links, as `Calibration` has it."""

    version: Annotated[Literal[1], stated("1, the version of calibrations that this release reads"), WHOLE]
    units: Annotated[Literal["SI"], stated('"SI": seconds, bytes and operations without multiples')]
    name: Text
    origin: Annotated[str, stated("text: what was measured, and by whom", min_length=1)]
    date: Annotated[str, stated('a day such as "2024-05-31"', pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    fits: NotRequired[Annotated[list[_Fit], listed("a list of fits")]]
    missing: NotRequired[Annotated[list[Words], listed("a list of sentences")]]
    products: NotRequired[
        Annotated[dict[str, _Curves], stated("an object of curves by the names of devices and dtypes"), at_most(1000)]
    ]
    devices: NotRequired[
        Annotated[dict[str, _Device], stated("an object of measured figures by the names of devices"), at_most(1000)]
    ]
    device_spread: NotRequired[Annotated[dict[str, _Spread], stated("an object of spreads by the names of devices")]]
    links: NotRequired[Annotated[list[_KindOfLink], listed("a list of measured links")]]
    memory: NotRequired[_Residuals]
    host_links: NotRequired[_HostLinks]
    host_memory: NotRequired[_HostMemories]
    within: NotRequired[Annotated[CollectivesData, stated("an object: fitted collectives within hosts")]]
    across: NotRequired[Annotated[CollectivesData, stated("an object: fitted collectives across hosts")]]
