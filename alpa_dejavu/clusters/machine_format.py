"""Machine files, version 1, as a declared type: every key, its units, and what it must be."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import (
    WHOLE,
    GivenNotNegative,
    GivenPositive,
    Source,
    Text,
    file_format,
    listed,
    stated,
    whole,
)
from alpa_dejavu.problem.limits import MOST_DEVICES_PER_HOST

SECONDS = 'an object such as {"value": 1, "unit": "s", "source": "where it is from"}'
BYTES_PER_S = 'an object such as {"value": 1, "unit": "bytes/s", "source": "where it is from"}'
SecondsUnit: TypeAlias = Annotated[Literal["s", "ms", "us", "ns"], stated("one of the units s, ms, us, ns")]
BytesPerSUnit: TypeAlias = Annotated[
    Literal["bytes/s", "MB/s", "GB/s", "GiB/s", "TB/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    stated("one of the units bytes/s, MB/s, GB/s, GiB/s, TB/s, Mbit/s, Gbit/s, Tbit/s"),
]


class SecondsData(TypedDict):
    """A time in a machine file, with its unit and its source."""

    value: GivenNotNegative
    unit: SecondsUnit
    source: Source


class BytesData(TypedDict):
    """A size of memory in a machine file, with its unit and its source."""

    value: GivenPositive
    unit: Annotated[
        Literal["bytes", "kB", "KiB", "MB", "MiB", "GB", "GiB", "TB", "TiB"],
        stated("one of the units bytes, kB, KiB, MB, MiB, GB, GiB, TB, TiB"),
    ]
    source: Source


class BytesPerSData(TypedDict):
    """A rate of bytes in a machine file, with its unit and its source."""

    value: GivenPositive
    unit: BytesPerSUnit
    source: Source


class FlopPerSData(TypedDict):
    """A rate of operations in a machine file, with its unit and its source."""

    value: GivenPositive
    unit: Annotated[
        Literal["FLOP/s", "GFLOP/s", "TFLOP/s", "PFLOP/s"],
        stated("one of the units FLOP/s, GFLOP/s, TFLOP/s, PFLOP/s"),
    ]
    source: Source


class PriceData(TypedDict):
    """The price of a machine per hour in its file, with its unit and its source."""

    value: GivenNotNegative
    unit: Annotated[Literal["USD/hour"], stated("the unit USD/hour")]
    source: Source


class MemoryMarginData(TypedDict):
    """The share of a device's memory that plans leave free, in a machine file, with its unit and its source."""

    value: GivenNotNegative
    unit: Annotated[Literal["%", "1"], stated("one of the units %, 1")]
    source: Source


SecondsFigure: TypeAlias = Annotated[SecondsData, stated(SECONDS)]
BytesFigure: TypeAlias = Annotated[
    BytesData, stated('an object such as {"value": 1, "unit": "bytes", "source": "where it is from"}')
]
BytesPerSFigure: TypeAlias = Annotated[BytesPerSData, stated(BYTES_PER_S)]
FlopPerSFigure: TypeAlias = Annotated[
    FlopPerSData, stated('an object such as {"value": 1, "unit": "FLOP/s", "source": "where it is from"}')
]
MemoryMarginFigure: TypeAlias = Annotated[
    MemoryMarginData, stated('an object such as {"value": 5, "unit": "%", "source": "where it is from"}')
]


class RatesData(TypedDict):
    """The rates of a device's matrix products by dtype; "float32" stands in for those that aren't there."""

    float8: NotRequired[FlopPerSFigure]
    float16: NotRequired[FlopPerSFigure]
    bfloat16: NotRequired[FlopPerSFigure]
    float32: FlopPerSFigure
    float64: NotRequired[FlopPerSFigure]
    int8: NotRequired[FlopPerSFigure]


class DeviceData(TypedDict):
    """The figures of a device in a machine file, as `Device` has them."""

    name: Text
    memory_bytes: BytesFigure
    flop_per_s: Annotated[RatesData, stated("an object of rates by dtype")]
    vector_flop_per_s: FlopPerSFigure
    memory_bytes_per_s: BytesPerSFigure
    kernel_s: SecondsFigure
    dispatch_s: SecondsFigure
    step_s: SecondsFigure


class LinkData(TypedDict):
    """The latencies and rates of a link in a machine file, as `Link` has them."""

    latency_s: SecondsFigure
    bytes_per_s: BytesPerSFigure
    send_latency_s: NotRequired[SecondsFigure]
    send_bytes_per_s: NotRequired[BytesPerSFigure]
    pair_bytes_per_s: NotRequired[BytesPerSFigure]


class NvmeData(TypedDict):
    """The NVMe drives of a host, all together, in a machine or cluster file, as `Nvme` has them."""

    num_bytes: BytesFigure
    read_bytes_per_s: BytesPerSFigure
    write_bytes_per_s: BytesPerSFigure


class HostMemoryData(TypedDict):
    """The memory of a host in a machine or cluster file, with the rates to its devices, as `HostMemory` has it."""

    num_bytes: BytesFigure
    bytes_per_s: BytesPerSFigure
    device_bytes_per_s: BytesPerSFigure
    shared_bytes_per_s: BytesPerSFigure
    nvme: NotRequired[Annotated[NvmeData, stated("an object with num_bytes, read_bytes_per_s and write_bytes_per_s")]]


HostMemoryFigures: TypeAlias = Annotated[
    HostMemoryData,
    stated("an object with num_bytes, bytes_per_s, device_bytes_per_s, shared_bytes_per_s, and perhaps nvme"),
]
_Devices: TypeAlias = Annotated[int, whole("a whole number above 0", 1, MOST_DEVICES_PER_HOST), WHOLE]
_Link: TypeAlias = Annotated[LinkData, stated("an object with the figures of a link")]


@file_format
class MachineData(TypedDict):
    """A machine file: the devices of a machine type, and its links within a host and between two."""

    version: Annotated[Literal[1], stated("1, the version of machine files that this release reads"), WHOLE]
    name: Text
    accelerator_type: NotRequired[Annotated[str | None, stated("Ray's name of the device, or null")]]
    devices_per_host: Annotated[
        _Devices | Annotated[list[_Devices], listed("", min_length=1)] | None,
        stated("a whole number above 0, a list of one for each host, or null: as many as this machine has cores"),
    ]
    price_per_hour: NotRequired[
        Annotated[
            PriceData | None,
            stated('an object such as {"value": 1, "unit": "USD/hour", "source": "where it is from"}, or null'),
        ]
    ]
    memory_margin: NotRequired[MemoryMarginFigure]
    host_memory: NotRequired[HostMemoryFigures]
    device: Annotated[
        DeviceData | None, stated("an object with the figures of a device, or null: this machine's CPU is measured")
    ]
    within: _Link
    between: _Link


class SmallProductsData(TypedDict):
    """An entry of a file that says how fast a device computes small matrix products, as `SmallProducts` has it."""

    below_flop: GivenPositive
    share: GivenPositive
    library_s: NotRequired[GivenNotNegative]


class StridedData(TypedDict):
    """An entry of a file that says how fast a device reads memory against its elements' order, as `StridedReads` has
    it.
    """

    bytes_per_s: GivenPositive
    cached_bytes_per_s: GivenPositive
    cached_bytes: GivenPositive
    near_bytes_per_s: NotRequired[GivenPositive]


SmallProducts: TypeAlias = Annotated[SmallProductsData, stated("an object with below_flop and share")]
Strided: TypeAlias = Annotated[StridedData, stated("an object with bytes_per_s, cached_bytes_per_s and cached_bytes")]
