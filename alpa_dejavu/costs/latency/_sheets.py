"""The power of known GPUs by their data sheets, which tables of measurements leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from alpa_dejavu.costs.latency._kernels import DataSheet

POWER_W_AND_PROCESS_NM = {
    "a100-pcie-40gb": (250.0, 7.0),
    "a100-pcie-80gb": (300.0, 7.0),
    "a100-sxm": (400.0, 7.0),
    "h100-pcie": (350.0, 4.0),
    "h100-sxm-80gb": (700.0, 4.0),
    "l4": (72.0, 4.0),
    "p100-pcie-16gb": (250.0, 16.0),
    "p4": (75.0, 16.0),
    "t4": (70.0, 12.0),
    "v100-pcie-32gb": (250.0, 12.0),
    "v100-sxm2-16gb": (300.0, 12.0),
}
"""NVIDIA's data sheets: the board's greatest power, and the process that the chip is made in."""


def data_sheets(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, DataSheet]:
    """Returns the GPUs' data sheets by name, from a table of figures; the board's power and the size of transistors,
    which the table lacks, are added for GPUs that are known.

    Args:
        figures: fp32_flop_per_s, memory_bandwidth_bytes_per_s, num_sm and l2_cache_bytes of each GPU.

    Raises:
        ValueError: a figure is missing, or isn't above zero.
    """
    sheets = {}
    for name, of_gpu in figures.items():
        names = ("fp32_flop_per_s", "memory_bandwidth_bytes_per_s", "num_sm", "l2_cache_bytes")
        for field in names:
            value = of_gpu.get(field, 0)
            if isinstance(value, (str, bool)) or value is None or not 0 < float(value) < math.inf:
                found = f"data sheet of {name}: {field} is {of_gpu.get(field)!r}"
                raise ValueError(f"{found}, but must be a finite number above zero; mend it")
        rate, bandwidth, processors, cache = (float(of_gpu[field]) for field in names)
        power, process = POWER_W_AND_PROCESS_NM.get(name, (None, None))
        sheets[name] = DataSheet(rate, bandwidth, processors, cache, power, process)
    return sheets
