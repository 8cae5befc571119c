"""The data sheets of GPUs by name: what models of their kernels need to know beside a device's rates."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping
from typing import final

from alpa_dejavu.problem import Device

_FILE = pathlib.Path(__file__).parent / "sheets" / "gpus.json"
_KERNEL_S, _DISPATCH_S, _STEP_S = 5e-6, 1e-4, 5e-3
"""Estimates of their order, as in the machine files: launches of a kernel, of a compiled computation, and a step."""


@final
@dataclasses.dataclass(frozen=True)
class Gpu:
    """The data sheet of a GPU: its name in machine files, its architecture ("hopper"; `costs/kernels/_classes.py` has
    the words), streaming multiprocessors with
    their boost clock, L2 cache, memory, rates, the board's greatest power, and where the figures are from.

    `flop_per_s` are rates of dense matrix products by dtype, "float8" standing for all formats of 8 bits;
    `vector_flop_per_s` that of its other units in single precision. `link_bytes_per_s` is what its NVLinks, or its PCIe
    lanes where it has none, carry in one direction.
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
        return Device(
            self.name,
            self.memory_bytes,
            self.flop_per_s,
            self.vector_flop_per_s,
            self.memory_bytes_per_s,
            kernel_s=_KERNEL_S,
            dispatch_s=_DISPATCH_S,
            step_s=_STEP_S,
            origin=self.source,
        )


def known_gpus() -> tuple[str, ...]:
    """Returns the names of all GPUs whose data sheets are known.

    >>> "H100-SXM-80GB" in known_gpus()
    True
    """
    return tuple(_sheets())


def gpu_of(device: str) -> Gpu | None:
    """Returns the data sheet of the GPU that a device's name stands for; None if none is known.

    >>> gpu_of("H100-SXM-80GB").generation
    'hopper'
    """
    return _sheets().get(device)


@functools.cache
def _sheets() -> dict[str, Gpu]:
    sheets = json.loads(_FILE.read_text(encoding="utf-8"))["gpus"]
    return {name: Gpu(name, **figures) for name, figures in sheets.items()}
