"""A device, with its rates, and its host's memory beside that of its devices: how fast tensors come and go."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.dataclass_format import Rare
from alpa_dejavu._util.format_fields import GivenNotNegative, GivenPositive, Text, Words, stated
from alpa_dejavu._util.format_fields import at_most as few
from alpa_dejavu.problem import checks

_APART = 8
"""How many times as much cache the lines of strided reads take at the next rate that is known."""


@final
@dataclasses.dataclass(frozen=True)
class SmallProducts:
    """The rate of the matrix products that are too small for a device's fast matrix library, and how long that library
    takes to start.

    Attributes:
        below_flop: the floating-point operations from which on a product runs at the device's full rate; products of
            fewer are small, if they have no batch dimension.
        share: the part of the full rate that small products reach.
        library_s: the seconds that the library takes for each product besides; None: none.
    """

    below_flop: GivenPositive
    share: GivenPositive
    library_s: Rare[GivenNotNegative | None] = None

    def __post_init__(self) -> None:
        checks.fields("small products", self, "below_flop share", "library_s")


@final
@dataclasses.dataclass(frozen=True)
class StridedReads:
    """The rates at which a device reads arrays against their order in memory, where a cache line is fetched per
    element.

    A line is needed again for its other elements, after the lines that are read in between. The more cache these take,
    the further away it lies then. Between the three rates, the logarithm of the rate is linear in that of the cache.

    Attributes:
        bytes_per_s: the rate of an operator whose lines take eight times `cached_bytes`, or more.
        cached_bytes_per_s: the rate of an operator whose lines take `cached_bytes`.
        near_bytes_per_s: the rate of an operator whose lines take an eighth of `cached_bytes`, or less; None: the same
            as `cached_bytes_per_s`.
    """

    bytes_per_s: GivenPositive
    cached_bytes_per_s: GivenPositive
    cached_bytes: GivenPositive
    near_bytes_per_s: Rare[GivenPositive | None] = None

    def __post_init__(self) -> None:
        checks.fields("strided reads", self, "bytes_per_s cached_bytes_per_s cached_bytes near_bytes_per_s")

    def rate(self, cache_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the bytes per second of operators, by the cache that their lines take, shape (operators,).

        >>> StridedReads(1.0, 8.0, 64.0, 16.0).rate(np.array([1.0, 8.0, 64.0, 128.0, 512.0, 4096.0])).tolist()
        [16.0, 16.0, 8.0, 4.0, 1.0, 1.0]
        """
        near = self.cached_bytes_per_s if self.near_bytes_per_s is None else self.near_bytes_per_s
        sizes = self.cached_bytes / _APART, self.cached_bytes, self.cached_bytes * _APART
        rates = near, self.cached_bytes_per_s, self.bytes_per_s
        asked = np.log2(np.maximum(cache_bytes, sizes[0]))
        return np.asarray(np.exp2(np.interp(asked, np.log2(sizes), np.log2(rates))))

    def nearest(self, cache_bytes: NDArray[np.float64]) -> NDArray[np.str_]:
        """Returns which of the known rates is nearest to that of operators, by the cache that their lines take, as the
        name of its field, shape (operators,).

        >>> StridedReads(1.0, 8.0, 64.0, 16.0).nearest(np.array([8.0, 64.0, 512.0])).tolist()
        ['near_bytes_per_s', 'cached_bytes_per_s', 'bytes_per_s']
        """
        near = "cached_bytes_per_s" if self.near_bytes_per_s is None else "near_bytes_per_s"
        limit = math.sqrt(_APART)
        below = [cache_bytes < self.cached_bytes / limit, cache_bytes < self.cached_bytes * limit]
        return np.select(below, [near, "cached_bytes_per_s"], "bytes_per_s")


@final
@dataclasses.dataclass(frozen=True)
class Device:
    """One accelerator, or one device's share of a CPU, with what it can do while all devices of its host compute.

    Attributes:
        flop_per_s: its rate of matrix products by dtype; "float32" must be given, and stands in for a dtype that isn't.
        vector_flop_per_s: operations per second of element-wise loops that stay in cache.
        memory_bytes_per_s: the bandwidth of its memory, reads and writes together.
        kernel_s: the seconds that starting one operator inside a compiled computation takes.
        dispatch_s: the seconds that starting one compiled computation takes (twice for each micro-batch and stage).
        step_s: the seconds that one training step takes a stage besides its computations.
        small_products: products that don't reach `flop_per_s`, and what others take to start; None: all reach it.
        dilated_flop_per_s: the rate of dilated convolutions (over images with holes); None: that of other products.
        extreme_flop_per_s: the elements per second of reductions to maxima or minima; None: as in other loops.
        strided: the rates of reads against the order in memory; None: such reads cost nothing extra.
        transcendental_flop: how many additions an exponential or tanh counts as: a polynomial and a division, and
            more where a compiler evaluates it again for each of its uses.
        uncached_bytes_per_s: the rate at which arrays are read and written that no cache holds from one use to the
            next: parameters, their gradients, and what one computation leaves for another; None: that of other arrays.
        crowding: the factor by which operators take longer in a stage of several devices, where these share a process.
    """

    name: Text
    memory_bytes: GivenPositive
    flop_per_s: Annotated[Mapping[str, GivenPositive], stated("an object of rates by dtype"), few(100)] = (
        dataclasses.field(hash=False)
    )
    vector_flop_per_s: GivenPositive
    memory_bytes_per_s: GivenPositive
    kernel_s: GivenNotNegative = 0.0
    dispatch_s: GivenNotNegative = 0.0
    step_s: GivenNotNegative = 0.0
    small_products: Rare[Annotated[SmallProducts | None, stated("an object with below_flop and share")]] = None
    transcendental_flop: GivenPositive = 16.0
    dilated_flop_per_s: Rare[GivenPositive | None] = None
    extreme_flop_per_s: Rare[GivenPositive | None] = None
    strided: Rare[
        Annotated[StridedReads | None, stated("an object with bytes_per_s, cached_bytes_per_s and cached_bytes")]
    ] = None
    uncached_bytes_per_s: Rare[GivenPositive | None] = None
    crowding: GivenPositive = 1.0
    origin: Words = ""

    def __post_init__(self) -> None:
        owner = f"device {self.name}"
        rates = "vector_flop_per_s memory_bytes_per_s dilated_flop_per_s extreme_flop_per_s uncached_bytes_per_s"
        checks.fields(owner, self, f"memory_bytes transcendental_flop crowding {rates}", "kernel_s dispatch_s step_s")
        if "float32" not in self.flop_per_s:
            raise ValueError(f"{owner}: flop_per_s has {sorted(self.flop_per_s)}, but needs 'float32'")
        for dtype, rate in self.flop_per_s.items():
            checks.positive(owner, f"flop_per_s[{dtype!r}]", rate)

    def rate(self, dtype: str) -> float:
        """Returns the device's operations per second of matrix products in a dtype, those of "float32" for an unknown
        one; "float8" and "float4" stand for all formats of so many bits.
        """
        return self.flop_per_s.get(_rated(dtype), self.flop_per_s["float32"])

    def has_rate(self, dtype: str) -> bool:
        """Returns whether the rate of matrix products in a dtype is known, so that "float32" doesn't stand for it."""
        return _rated(dtype) in self.flop_per_s

    def slower(self, factor: float) -> Device:
        """Returns the device that takes `factor` times as long: rates are divided by it, seconds multiplied."""
        slower: Device = _slower(self, factor)
        return slower


def _rated(dtype: str) -> str:
    """The dtype whose rate products in another have: of all formats of so many bits, and of TF32 single precision."""
    return dtype[:6] if dtype.startswith(("float8", "float4")) else "float32" if dtype == "tf32" else dtype


def _slower(part: Any, factor: float) -> Any:
    changed: dict[str, Any] = {}
    for name in (field.name for field in dataclasses.fields(part)):
        value = getattr(part, name)
        if isinstance(value, Mapping):
            changed[name] = {dtype: rate / factor for dtype, rate in value.items()}
        elif isinstance(value, (SmallProducts, StridedReads)):
            changed[name] = _slower(value, factor)
        elif value is not None and name.endswith("_s"):
            changed[name] = value / factor if name.endswith("_per_s") else value * factor
    return dataclasses.replace(part, **changed)


@final
@dataclasses.dataclass(frozen=True)
class Nvme:
    """The NVMe drives of a host together: the bytes that they hold, and their rates, one read or write at a time."""

    num_bytes: GivenPositive
    read_bytes_per_s: GivenPositive
    write_bytes_per_s: GivenPositive

    def __post_init__(self) -> None:
        checks.fields("nvme", self, "num_bytes read_bytes_per_s write_bytes_per_s")


@final
@dataclasses.dataclass(frozen=True)
class HostMemory:
    """The memory of a host, to which what is on its devices may be offloaded, and the links to these devices.

    Attributes:
        bytes_per_s: its bandwidth, reads and writes together, as the optimizer's update on the host's processors
            reaches it.
        device_bytes_per_s: the rate of copies between it and one device, each way, while the others copy nothing.
        shared_bytes_per_s: the rate of such copies of all devices of the host together, each way.
    """

    num_bytes: GivenPositive
    bytes_per_s: GivenPositive
    device_bytes_per_s: GivenPositive
    shared_bytes_per_s: GivenPositive
    nvme: Rare[Annotated[Nvme | None, stated("an object with num_bytes, read_bytes_per_s and write_bytes_per_s")]] = (
        None
    )

    def __post_init__(self) -> None:
        checks.fields("host memory", self, "num_bytes bytes_per_s device_bytes_per_s shared_bytes_per_s")

    def share(self, num_devices: int) -> HostShare:
        """Returns what each of the host's devices has of it while all of so many devices copy and update at a time."""
        drives = self.nvme
        return HostShare(
            self.num_bytes / num_devices,
            self.bytes_per_s / num_devices,
            min(self.device_bytes_per_s, self.shared_bytes_per_s / num_devices),
            0.0 if drives is None else drives.num_bytes / num_devices,
            0.0 if drives is None else drives.read_bytes_per_s / num_devices,
            0.0 if drives is None else drives.write_bytes_per_s / num_devices,
        )


@final
@dataclasses.dataclass(frozen=True)
class HostShare:
    """The part of a host's memory and drives that one of its devices has while all of them use these at a time.

    Attributes:
        copied_bytes_per_s: the rate of copies to the device, and of those from it.
        nvme_bytes: the bytes of the drives; 0 without drives, as are the next two.
        read_bytes_per_s, written_bytes_per_s: the rates of the drives.
    """

    num_bytes: float
    bytes_per_s: float
    copied_bytes_per_s: float
    nvme_bytes: float = 0.0
    read_bytes_per_s: float = 0.0
    written_bytes_per_s: float = 0.0

    @classmethod
    def least(cls, shares: Iterable[HostShare]) -> HostShare:
        """Returns for each figure the least one of several shares, as a stage on several hosts has it."""
        return cls(*map(min, zip(*map(dataclasses.astuple, dict.fromkeys(shares)), strict=True)))
