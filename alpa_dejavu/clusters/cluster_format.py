"""Files of whole clusters, version 1, as a declared type: every key, its units, and what it must be.

Figures of links may be any numbers here: which hosts' link can't be so is said by who makes the links.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import (
    MOST,
    WHOLE,
    Given,
    GivenPositive,
    Source,
    Text,
    Words,
    at_most,
    file_format,
    listed,
    stated,
    whole,
)
from alpa_dejavu.clusters.machine_format import (
    BYTES_PER_S,
    SECONDS,
    BytesFigure,
    BytesPerSUnit,
    FlopPerSFigure,
    HostMemoryFigures,
    MemoryMarginFigure,
    PriceData,
    SecondsUnit,
    SmallProducts,
    Strided,
)
from alpa_dejavu.problem.limits import MOST_DEVICES_PER_HOST, MOST_HOSTS


class AnySecondsData(TypedDict):
    """A time in a cluster file, with its unit and its source; it may be any number."""

    value: Given
    unit: SecondsUnit
    source: Source


class AnyBytesPerSData(TypedDict):
    """A rate of bytes in a cluster file, with its unit and its source; whether the number is a possible rate is checked
    when the cluster is made.
    """

    value: Given
    unit: BytesPerSUnit
    source: Source


_Seconds: TypeAlias = Annotated[AnySecondsData, stated(SECONDS)]
_BytesPerS: TypeAlias = Annotated[AnyBytesPerSData, stated(BYTES_PER_S)]
_Shares: TypeAlias = Annotated[
    Text | Annotated[list[Text], listed("")], stated("a name, or a list of names, of what the link shares with others")
]
_Ends: TypeAlias = Annotated[
    Text | Annotated[list[Text], listed("", min_length=1)],
    stated('a host\'s name, a machine type that hosts name, "*" for all hosts, or a list of these'),
]


class OwnDeviceData(TypedDict):
    """The device of a host that names no machine type, in a cluster file, as `Device` has it."""

    name: Text
    memory_bytes: BytesFigure
    flop_per_s: Annotated[dict[str, FlopPerSFigure], stated("an object of rates by dtype"), at_most(100)]
    vector_flop_per_s: FlopPerSFigure
    memory_bytes_per_s: _BytesPerS
    kernel_s: NotRequired[_Seconds]
    dispatch_s: NotRequired[_Seconds]
    step_s: NotRequired[_Seconds]
    small_products: NotRequired[SmallProducts]
    transcendental_flop: NotRequired[GivenPositive]
    dilated_flop_per_s: NotRequired[FlopPerSFigure]
    extreme_flop_per_s: NotRequired[FlopPerSFigure]
    strided: NotRequired[Strided]
    uncached_bytes_per_s: NotRequired[_BytesPerS]
    crowding: NotRequired[GivenPositive]
    origin: NotRequired[Words]


class WithinData(TypedDict):
    """The link within a host, between its own devices, in a cluster file."""

    latency_s: _Seconds
    bytes_per_s: _BytesPerS
    send_latency_s: NotRequired[_Seconds]
    send_bytes_per_s: NotRequired[_BytesPerS]
    pair_bytes_per_s: NotRequired[_BytesPerS]
    cached_bytes_per_s: NotRequired[_BytesPerS]
    cached_bytes: NotRequired[BytesFigure]
    shares: NotRequired[_Shares]


class HostData(TypedDict):
    """A host in a cluster file: either of a machine type, or with its own device, number of devices and link within."""

    name: Text
    machine: NotRequired[
        Annotated[str, stated("a known machine type, or the path of its file", min_length=1, max_length=4096)]
    ]
    devices: NotRequired[Annotated[int, whole("a whole number above 0", 1, MOST_DEVICES_PER_HOST), WHOLE]]
    price_per_hour: NotRequired[
        Annotated[PriceData, stated('an object such as {"value": 1, "unit": "USD/hour", "source": "where it is from"}')]
    ]
    memory_margin: NotRequired[MemoryMarginFigure]
    host_memory: NotRequired[HostMemoryFigures]
    device: NotRequired[Annotated[OwnDeviceData, stated("an object with the figures of a device")]]
    within: NotRequired[Annotated[WithinData, stated("an object with the figures of the link within a host")]]


LinkEntryData = TypedDict(
    "LinkEntryData",
    {
        "from": _Ends,
        "to": _Ends,
        "both_ways": NotRequired[Annotated[bool, stated("true (it goes from `to` to `from` as well) or false")]],
        "latency_s": _Seconds,
        "bytes_per_s": _BytesPerS,
        "send_latency_s": NotRequired[_Seconds],
        "send_bytes_per_s": NotRequired[_BytesPerS],
        "pair_bytes_per_s": NotRequired[_BytesPerS],
        "cached_bytes_per_s": NotRequired[_BytesPerS],
        "cached_bytes": NotRequired[BytesFigure],
        "shares": NotRequired[_Shares],
    },
)
"""A link in one direction, or in both, between each of some hosts and each of others."""


class ReductionServerData(TypedDict):
    """A host without accelerators that adds up gradients, in a cluster file."""

    name: Text
    bytes_per_s: _BytesPerS


@file_format
class ClusterData(TypedDict):
    """A cluster file: hosts, and a link for each pair of them in both directions."""

    version: Annotated[Literal[1], stated("1, the version of cluster files that this release reads"), WHOLE]
    name: Text
    cores: NotRequired[
        Annotated[
            Annotated[int, whole("", 1, MOST), WHOLE] | None,
            stated("the cores of the one CPU that all devices are parts of, or null"),
        ]
    ]
    waiting: NotRequired[
        Annotated[float, stated("the share that CPU devices wait for others of their process, below 1", ge=0, lt=1)]
    ]
    hosts: Annotated[
        list[
            Annotated[HostData, stated("an object: a host with a machine type, or with a device, devices and within")]
        ],
        listed(f"a list of hosts, at most {MOST_HOSTS}", min_length=1, max_length=MOST_HOSTS),
    ]
    media: NotRequired[
        Annotated[dict[str, _BytesPerS], stated("an object of rates by the names that links share"), at_most(10_000)]
    ]
    checkpoint_bytes_per_s: NotRequired[_BytesPerS]
    reduction_servers: NotRequired[
        Annotated[
            list[Annotated[ReductionServerData, stated("an object with the name and the bytes_per_s of a host")]],
            listed(f"a list of hosts without accelerators, at most {MOST_HOSTS}", max_length=MOST_HOSTS),
        ]
    ]
    links: NotRequired[
        Annotated[
            list[Annotated[LinkEntryData, stated("an object with the ends and the figures of a link")]],
            listed("a list of links, which a cluster of one host needs none of"),
        ]
    ]
