"""The bundled calibrations: of which devices, by which data sheets, and with which parts that were measured on them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.costs.latency.learned import DataSheet, data_sheets

_TABLE = "the data sheets of NeuSight's table"
_MAKER = "NVIDIA's data sheets and architecture white papers"


@final
@dataclasses.dataclass(frozen=True)
class Bundle:
    """One calibration.

    Attributes:
        name: what it is chosen by.
        title: its devices for people.
        devices: data sheets' names by the names that machine files give devices.
        source: where the data sheets are from.
        kernels: the GPU whose kernels are nearest, by the measurements' name; None: no kernel was measured on it.
        layers: the GPUs whose layers were measured, by the measurements' names.
        within: the part with collectives inside its hosts, if they were measured.
        across: the part with collectives that span hosts.
        products: its machine, on one of whose devices products were measured.
        peaks: the part with measured peaks of memory on it.
        note: what else must be known.
    """

    name: str
    title: str
    devices: Mapping[str, str]
    source: str = _TABLE
    kernels: str | None = None
    layers: tuple[str, ...] = ()
    within: str | None = None
    across: str | None = None
    products: str | None = None
    peaks: str | None = None
    note: str = ""


BUNDLES = (
    Bundle(
        "v100",
        "V100 in AWS p3 hosts",
        {"V100-SXM2-16GB": "v100-sxm2-16gb", "V100-PCIE-32GB": "v100-pcie-32gb"},
        f"{_TABLE} (PCIe) and {_MAKER} (SXM2)",
        kernels="v100-pcie-32gb",
        layers=("V100-16",),
        within="p3 within",
        across="p3 across",
        products="p3.16xlarge",
        note="kernels were measured on V100-PCIe; V100-SXM2 goes by its data sheet, and its products by square ones "
        "that were measured there",
    ),
    Bundle(
        "t4",
        "T4 in AWS g4dn hosts",
        {"T4": "t4"},
        kernels="t4",
    ),
    Bundle(
        "a100",
        "A100",
        {
            "A100-SXM-40GB": "a100-sxm",
            "A100-SXM-80GB": "a100-sxm-80gb",
            "A100-PCIE-40GB": "a100-pcie-40gb",
            "A100-PCIE-80GB": "a100-pcie-80gb",
        },
        f"{_TABLE} (PCIe) and {_MAKER} (SXM)",
        kernels="a100-pcie-40gb",
        layers=("A100-40", "A100-80"),
        within="a100 within",
        note="kernels were measured on A100-PCIe-40GB; the others go by their data sheets. Of collectives only "
        "all-reduces were measured; others are taken to depend on bytes, rounds and size of the group as those do",
    ),
    Bundle(
        "gh200",
        "GH200",
        {"GH200-96GB": "gh200-96gb"},
        _MAKER,
        layers=("GH-96",),
        peaks="pipelines gh200",
    ),
    Bundle(
        "rtx",
        "RTX 2080 Ti, RTX 3090 and Titan RTX",
        {"RTX-2080-Ti": "rtx-2080-ti", "RTX-3090": "rtx-3090", "Titan-RTX": "titan-rtx"},
        _MAKER,
        layers=("RTX-2080", "RTX-3090", "Titan-RTX"),
        note="RTX-2080 of the measurements is taken for a 2080 Ti: a 2080 can't do what was measured in that time",
    ),
    Bundle("p100", "P100", {"P100-PCIE-16GB": "p100-pcie-16gb"}, kernels="p100-pcie-16gb"),
    Bundle("p4", "P4", {"P4": "p4"}, kernels="p4"),
    Bundle("h100", "H100", {"H100-SXM-80GB": "h100-sxm-80gb"}),
    Bundle("l4", "L4", {"L4": "l4"}),
)

_MIB = 2**20


def _figures(flop_per_s: float, memory_bytes_per_s: float, num_sm: int, l2_cache_bytes: float) -> dict[str, Any]:
    return {
        "fp32_flop_per_s": flop_per_s,
        "memory_bandwidth_bytes_per_s": memory_bytes_per_s,
        "num_sm": num_sm,
        "l2_cache_bytes": l2_cache_bytes,
    }


_BY_MAKER = {
    "v100-sxm2-16gb": _figures(15.7e12, 900e9, 80, 6 * _MIB),
    "a100-sxm": _figures(19.5e12, 1555e9, 108, 40 * _MIB),
    "a100-sxm-80gb": _figures(19.5e12, 2039e9, 108, 40 * _MIB),
    "gh200-96gb": _figures(67e12, 4000e9, 132, 50 * _MIB),
    "rtx-2080-ti": _figures(13.4e12, 616e9, 68, 5.5 * _MIB),
    "rtx-3090": _figures(35.6e12, 936e9, 82, 6 * _MIB),
    "titan-rtx": _figures(16.3e12, 672e9, 72, 6 * _MIB),
}
_POWER_W_AND_PROCESS_NM = {
    "a100-sxm-80gb": (400.0, 7.0),
    "gh200-96gb": (700.0, 4.0),
    "rtx-2080-ti": (250.0, 12.0),
    "rtx-3090": (350.0, 8.0),
    "titan-rtx": (280.0, 12.0),
}


def sheets_of(bundle: Bundle, table: Mapping[str, Mapping[str, Any]]) -> dict[str, DataSheet]:
    """Data sheets by the names of devices; `table` has those that come with the measurements."""
    known = data_sheets({**table, **_BY_MAKER})
    for name, (power_w, process_nm) in _POWER_W_AND_PROCESS_NM.items():
        known[name] = dataclasses.replace(known[name], power_w=power_w, process_nm=process_nm)
    return {device: known[sheet] for device, sheet in bundle.devices.items()}
