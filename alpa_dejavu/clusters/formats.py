"""Files of machines and of whole clusters, version 1, as declared types: every key, its units, and what it must be.

The figures of devices, links and hosts' memory follow from their dataclasses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from typing_extensions import NotRequired, TypedDict

from alpa_dejavu._util.format_fields import MOST, WHOLE, Text, at_most, file_format, listed, stated, whole
from alpa_dejavu.clusters.figures import figure_format, figures_format
from alpa_dejavu.problem import Device, HostMemory, Link, Nvme, ReductionServer
from alpa_dejavu.problem.limits import MOST_DEVICES_PER_HOST, MOST_HOSTS

_Count: TypeAlias = Annotated[int, whole("a whole number above 0", 1, MOST_DEVICES_PER_HOST), WHOLE]
_Shares: TypeAlias = Annotated[
    Text | Annotated[list[Text], listed("")], stated("a name, or a list of names, of what the link shares with others")
]
_Ends: TypeAlias = Annotated[
    Text | Annotated[list[Text], listed("", min_length=1)],
    stated('a host\'s name, a machine type that hosts name, "*" for all hosts, or a list of these'),
]
if TYPE_CHECKING:
    _Rate: TypeAlias = dict[str, Any]
    _Price: TypeAlias = dict[str, Any]
    _Margin: TypeAlias = dict[str, Any]
    _HostMemory: TypeAlias = dict[str, Any]
    _Device: TypeAlias = dict[str, Any]
    _OwnDevice: TypeAlias = dict[str, Any]
    _Link: TypeAlias = dict[str, Any]
    _Within: TypeAlias = dict[str, Any]
    _LinkEntry: TypeAlias = dict[str, Any]
    _Server: TypeAlias = dict[str, Any]
else:
    _Rate, _Price, _Margin, _FLOPS = map(
        figure_format, ("bytes_per_s", "price_per_hour", "memory_margin", "flop_per_s")
    )
    _DTYPES = ("float4", "float8", "float16", "bfloat16", "float32", "float64", "int8")
    _Rates = TypedDict("RatesData", {name: _FLOPS if name == "float32" else NotRequired[_FLOPS] for name in _DTYPES})
    _Drives = figures_format("NvmeData", Nvme, "The NVMe drives of a host, all together, as `Nvme` has them.")
    _HostMemory = Annotated[
        figures_format(
            "HostMemoryData", HostMemory, "The memory of a host, with the rates to its devices.",
            nvme=NotRequired[
                Annotated[_Drives, stated("an object with num_bytes, read_bytes_per_s and write_bytes_per_s")]
            ],
        ),
        stated("an object with num_bytes, bytes_per_s, device_bytes_per_s, shared_bytes_per_s, and perhaps nvme"),
    ]  # fmt: skip
    _Device = figures_format(
        "DeviceData", Device, "The figures of a device in a machine file, as `Device` has them.",
        without="origin small_products strided",
        flop_per_s=Annotated[_Rates, stated("an object of rates by dtype")],
    )  # fmt: skip
    _OwnDevice = figures_format(
        "OwnDeviceData", Device, "The device of a host that names no machine type, in a cluster file."
    )
    _Link = Annotated[
        figures_format("LinkData", Link, "The latencies and rates of a link in a machine file.", "shares"),
        stated("an object with the figures of a link"),
    ]
    _Within = figures_format(
        "WithinData", Link, "The link within a host, between its own devices, in a cluster file.",
        shares=NotRequired[_Shares],
    )  # fmt: skip
    _BothWays = Annotated[bool, stated("true (it goes from `to` to `from` as well) or false")]
    _LinkEntry = figures_format(
        "LinkEntryData", Link, "A link in one direction, or in both, between each of some hosts and each of others.",
        shares=NotRequired[_Shares], both_ways=NotRequired[_BothWays], **{"from": _Ends, "to": _Ends},
    )  # fmt: skip
    _Server = figures_format(
        "ReductionServerData", ReductionServer, "A host without accelerators that adds up gradients."
    )


@file_format
class MachineData(TypedDict):
    """A machine file: the devices of a machine type, and its links within a host and between two."""

    version: Annotated[Literal[1], stated("1, the version of machine files that this release reads"), WHOLE]
    name: Text
    accelerator_type: NotRequired[Annotated[str | None, stated("Ray's name of the device, or null")]]
    devices_per_host: Annotated[
        _Count | Annotated[list[_Count], listed("", min_length=1)] | None,
        stated("a whole number above 0, a list of one for each host, or null: as many as this machine has cores"),
    ]
    price_per_hour: NotRequired[
        Annotated[
            _Price | None,
            stated('an object such as {"value": 1, "unit": "USD/hour", "source": "where it is from"}, or null'),
        ]
    ]
    memory_margin: NotRequired[_Margin]
    host_memory: NotRequired[_HostMemory]
    gpu: NotRequired[Annotated[str, stated("the name of a GPU that is known, in place of `device`", min_length=1)]]
    device: NotRequired[
        Annotated[
            _Device | None, stated("an object with the figures of a device, or null: this machine's CPU is measured")
        ]
    ]
    within: _Link
    between: _Link


class HostData(TypedDict):
    """A host in a cluster file: either of a machine type, or with its own device, number of devices and link within."""

    name: Text
    machine: NotRequired[
        Annotated[str, stated("a known machine type, or the path of its file", min_length=1, max_length=4096)]
    ]
    devices: NotRequired[_Count]
    price_per_hour: NotRequired[_Price]
    memory_margin: NotRequired[_Margin]
    host_memory: NotRequired[_HostMemory]
    device: NotRequired[Annotated[_OwnDevice, stated("an object with the figures of a device")]]
    within: NotRequired[Annotated[_Within, stated("an object with the figures of the link within a host")]]


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
        Annotated[dict[str, _Rate], stated("an object of rates by the names that links share"), at_most(10_000)]
    ]
    checkpoint_bytes_per_s: NotRequired[_Rate]
    reduction_servers: NotRequired[
        Annotated[
            list[Annotated[_Server, stated("an object with the name and the bytes_per_s of a host")]],
            listed(f"a list of hosts without accelerators, at most {MOST_HOSTS}", max_length=MOST_HOSTS),
        ]
    ]
    links: NotRequired[
        Annotated[
            list[Annotated[_LinkEntry, stated("an object with the ends and the figures of a link")]],
            listed("a list of links, which a cluster of one host needs none of"),
        ]
    ]
