"""Kernels as columns: their shapes, their work, and the data sheet of the GPU that each runs on."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CLASSES = {"linear": "product", "bmm": "product", "softmax": "rows", "ln": "rows"}
"""Kernels by how they use memory: products reuse it, kernels over rows go over it more than once, all others once."""

_OPERANDS = {"add": 3.0, "mul": 3.0}
_CACHED, _CACHED_WIDTH = 0.78, 0.03
_CACHE_BYTES_PER_S_OF_SM = 32 * 1.4e9
"""Half of what a processor and the cache exchange in a clock, by the architectures' white papers."""
_ENERGY_J_PER_NM = 1.2e-12
"""Joules of an operation in single precision, by the size of the transistors. Of no limit, 1.2 and 1.7 pJ, it has the
least error on GPUs that were left out; V100 SXM2 may take 1.6 at its highest clock (300 W, 15.7e12 a second, 12 nm)."""


@final
@dataclasses.dataclass(frozen=True)
class DataSheet:
    """The figures of a GPU from its maker's data sheet.

    Attributes:
        flop_per_s: the rate of matrix products in their dtype, at the highest clock.
        memory_bytes_per_s: the bandwidth of its memory.
        num_sm: the number of its (streaming multi-)processors.
        l2_cache_bytes: the size of the cache that they share.
        power_w: the power in watts that the board may take; None where unknown.
        process_nm: the size of its transistors in nanometres; None where unknown. Where either is unknown, the highest
            clock is taken to be sustained.
    """

    flop_per_s: float
    memory_bytes_per_s: float
    num_sm: float
    l2_cache_bytes: float
    power_w: float | None = None
    process_nm: float | None = None

    @property
    def sustained_flop_per_s(self) -> float:
        """Returns the FLOP per second that the board's power suffices for: the rate at the highest clock, or less."""
        if self.power_w is None or self.process_nm is None:
            return self.flop_per_s
        limit = self.power_w / (_ENERGY_J_PER_NM * self.process_nm)
        return float((self.flop_per_s**-4 + limit**-4) ** -0.25)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Kernels:
    """A table of GPU kernels, with their sizes and the data sheets of their GPUs, as columns of shape (kernels,).

    A product is `batch` times (m, k) by (k, n); all others go over `batch` rows of length n. `gpu` is the number of a
    kernel's GPU; `rate` and the columns after it are from that GPU's data sheet. `process_nm` is 0 where the size of
    the transistors isn't known.
    """

    op: NDArray[np.str_]
    batch: Array
    m: Array
    n: Array
    k: Array
    gpu: NDArray[np.int64]
    rate: Array
    sustained: Array
    bandwidth: Array
    num_sm: Array
    l2_bytes: Array
    process_nm: Array

    @classmethod
    def of(cls, columns: Mapping[str, Any], sheets: Mapping[str, DataSheet]) -> Kernels:
        """Returns the table of GPU kernels from columns op, batch, m, n, k and gpu, where gpu names a data sheet.

        Raises:
            ValueError: a GPU has no data sheet, or a size isn't at least 1.
        """
        names = [str(name) for name in columns["gpu"]]
        known = sorted(set(names))
        missing = [name for name in known if name not in sheets]
        if missing:
            raise ValueError(f"kernels: there is no data sheet of {missing[0]!r}; add it to {sorted(sheets)}")
        sizes = {name: np.asarray(columns[name], dtype=np.float64) for name in ("batch", "m", "n", "k")}
        for name, values in sizes.items():
            if not (np.isfinite(values) & (values >= 1)).all():
                raise ValueError(f"kernels: {name} is {values[~(values >= 1)][:1]}, but sizes are at least 1")
        gpu = np.array([known.index(name) for name in names], dtype=np.int64)
        of_gpu = [sheets[name] for name in known]

        def sheet(field: str) -> Array:
            return np.array([getattr(each, field) or 0 for each in of_gpu], dtype=np.float64)[gpu]

        return cls(
            op=np.array([str(op) for op in columns["op"]], dtype=np.str_),
            **sizes,
            gpu=gpu,
            rate=sheet("flop_per_s"),
            sustained=sheet("sustained_flop_per_s"),
            bandwidth=sheet("memory_bytes_per_s"),
            num_sm=sheet("num_sm"),
            l2_bytes=sheet("l2_cache_bytes"),
            process_nm=sheet("process_nm"),
        )

    def take(self, index: Any) -> Kernels:
        """Returns the table with only some of its GPU kernels, chosen by a boolean mask or by indices."""
        return Kernels(**{field.name: getattr(self, field.name)[index] for field in dataclasses.fields(self)})

    @functools.cached_property
    def kind(self) -> NDArray[np.str_]:
        """Returns the class of each kernel: "product" for matrix products, "rows" for kernels that go over rows more
        than once (softmax, normalisation), "map" for all others.
        """
        return np.array([CLASSES.get(op, "map") for op in self.op.tolist()], dtype=np.str_)

    @property
    def flop(self) -> Array:
        """Returns the number of floating-point operations of each kernel."""
        elements = self.batch * self.n
        return np.where(self.kind == "product", 2 * elements * self.m * self.k, elements)

    @functools.cached_property
    def moved_bytes(self) -> Array:
        """Returns each kernel's memory traffic in bytes, in single precision, if operands are read and results written
        once.
        """
        operands = np.array([_OPERANDS.get(op, 2.0) for op in self.op.tolist()])
        product = self.m * self.k + self.k * self.n + self.m * self.n
        return 4 * self.batch * np.where(self.kind == "product", product, operands * self.n)

    @property
    def traffic_s(self) -> Array:
        """Returns the seconds of each kernel's memory traffic at the memory's full rate."""
        return self.moved_bytes / self.bandwidth

    @functools.cached_property
    def cached_traffic_s(self) -> Array:
        """Returns the seconds of each kernel's traffic when what fits in the shared cache stays there between its runs.

        On A100 kernels of up to three quarters of the cache run at the cache's rate, those over 0.85 at the memory's.
        """
        cached = 1 / (1 + np.exp(np.clip((self.moved_bytes / self.l2_bytes - _CACHED) / _CACHED_WIDTH, -50, 50)))
        cache_s = self.moved_bytes / np.maximum(self.num_sm * _CACHE_BYTES_PER_S_OF_SM, self.bandwidth)
        return np.asarray(cached * cache_s + (1 - cached) * self.traffic_s)

    @property
    def compute_s(self) -> Array:
        """Returns the seconds of each kernel's floating-point operations at the rate of the highest clock."""
        return self.flop / self.rate

    def __len__(self) -> int:
        return len(self.op)
