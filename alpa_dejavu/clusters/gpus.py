"""The data sheets of GPUs by name: what models of their kernels need to know beside a device's rates.

Each figure of `sheets/gpus.json` has its unit and its source, "sheet" and "paper" standing for those that the GPU's
`sources` spell out. `flop_per_s` has the peaks of dense products by precision, fp64 to fp4, as data sheets have them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, TypeVar, final

from alpa_dejavu.clusters.figures import UNITS, si
from alpa_dejavu.problem import Device

_Figure = TypeVar("_Figure")
_FILE = pathlib.Path(__file__).parent / "sheets" / "gpus.json"
_UNITS = {**UNITS, "MHz": 1e6, "W": 1.0}
_ALLOCATED = 0.9
"""The share of a device's memory that Alpa lets XLA have."""
STARTS: Mapping[str, Mapping[str, Any]] = {
    "kernel_s": {"value": 5, "unit": "us", "source": "order of a CUDA kernel launch; an estimate"},
    "dispatch_s": {"value": 100, "unit": "us", "source": "order of starting an XLA executable; an estimate"},
    "step_s": {"value": 5, "unit": "ms", "source": "order of a Ray call to every worker of Alpa's driver; an estimate"},
}
"""What no data sheet has, the same for all devices of machine files that say nothing else."""
PRECISIONS: Mapping[str, str] = {
    "tf32": "float32", "fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8",
    "fp4": "float4",
}  # fmt: skip
"""The precisions of data sheets, and the dtype whose products each prices: those of float32 go by TF32 where tensor
cores have it, and by FP32 elsewhere. FP32 is also the rate of all that isn't a product."""


@final
@dataclasses.dataclass(frozen=True)
class Gpu:
    """The data sheet of a GPU: its name in machine files, its architecture ("hopper"; `costs/kernels/_classes.py` has
    the words), streaming multiprocessors with
    their boost clock, L2 cache, memory, rates, the board's greatest power, and where the figures are from.

    `flop_per_s` are rates of dense matrix products by dtype, "float8" and "float4" standing for all formats of so many
    bits; `vector_flop_per_s` that of its other units in single precision. `link_bytes_per_s` is what its NVLinks, or
    its PCIe lanes where it has none, carry in one direction.
    """

    name: str
    generation: str
    num_sm: int
    clock_hz: float
    l2_bytes: float
    memory_bytes: float
    memory_bytes_per_s: float
    flop_per_s: Mapping[str, float] = dataclasses.field(hash=False)
    vector_flop_per_s: float
    power_w: float
    link_bytes_per_s: float
    source: str

    def device(self) -> Device:
        """Returns the GPU as a device of a cluster, with all of its memory."""
        starts: dict[str, Any] = {name: si(figure) for name, figure in STARTS.items()}
        return Device(
            self.name,
            self.memory_bytes,
            self.flop_per_s,
            self.vector_flop_per_s,
            self.memory_bytes_per_s,
            **starts,
            origin=self.source,
        )


def known_gpus() -> tuple[str, ...]:
    """Returns the names of all GPUs whose data sheets are known.

    >>> "H100-SXM-80GB" in known_gpus()
    True
    """
    return tuple(_file())


@functools.cache
def gpu_of(device: str) -> Gpu | None:
    """Returns the data sheet of the GPU that a device's name stands for; None if none is known.

    >>> gpu_of("H100-SXM-80GB").generation
    'hopper'
    """
    if device not in _file():
        return None
    sheet = data_sheet(device)
    peaks = {name: _si(figure) for name, figure in sheet.pop("flop_per_s").items()}
    sources = _file()[device]["sources"]
    return Gpu(
        device,
        _file()[device]["generation"],
        num_sm=sheet.pop("num_sm")["value"],
        flop_per_s=_by_dtype(peaks),
        vector_flop_per_s=peaks["fp32"],
        source=sources["sheet"],
        **{name: _si(figure) for name, figure in sheet.items()},
    )


def data_sheet(name: str) -> dict[str, Any]:
    """Returns the figures of a known GPU as its data sheet has them, each with its unit and its source; `flop_per_s`
    has one for each precision.

    >>> data_sheet("H100-SXM-80GB")["memory_bytes_per_s"]["value"], list(data_sheet("T4")["flop_per_s"])
    (3350, ['fp64', 'fp32', 'fp16'])
    """
    entry = _file()[name]

    def sourced(figure: Mapping[str, Any]) -> dict[str, Any]:
        spelled_out = re.sub(r"^\w+", lambda word: entry["sources"].get(word[0], word[0]), figure["source"])
        return {**figure, "source": spelled_out}

    sheet = {key: sourced(entry[key]) for key in entry if key not in ("generation", "sources")}
    peaks = sheet["flop_per_s"]
    shared = {"unit": peaks.pop("unit"), "source": peaks.pop("source")}
    return {**sheet, "flop_per_s": {precision: {"value": rate, **shared} for precision, rate in peaks.items()}}


def device_figures(name: str) -> dict[str, Any]:
    """Returns a known GPU as a machine file describes a device, with the memory that Alpa leaves to a plan; the source
    of its memory's rate is the name of its data sheet.
    """
    sheet, sources = data_sheet(name), _file()[name]["sources"]
    memory = sheet["memory_bytes"]
    own = f"{memory['source']}, of which Alpa lets XLA have {_ALLOCATED} (XLA_PYTHON_CLIENT_MEM_FRACTION)"
    return {
        "name": name,
        "memory_bytes": {**memory, "value": memory["value"] * _ALLOCATED, "source": own},
        "flop_per_s": _by_dtype(sheet["flop_per_s"]),
        "vector_flop_per_s": sheet["flop_per_s"]["fp32"],
        "memory_bytes_per_s": {**sheet["memory_bytes_per_s"], "source": re.split("[,:]", sources["sheet"])[0]},
        **STARTS,
    }


def _by_dtype(peaks: Mapping[str, _Figure]) -> dict[str, _Figure]:
    """Returns for each dtype the peak that its products go by."""
    rates: dict[str, _Figure] = {}
    for precision, dtype in PRECISIONS.items():
        if precision in peaks:
            rates.setdefault(dtype, peaks[precision])
    return rates


def _si(figure: Mapping[str, Any]) -> float:
    return float(figure["value"]) * _UNITS[figure["unit"]]


@functools.cache
def _file() -> dict[str, Any]:
    sheets: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))["gpus"]
    return sheets
