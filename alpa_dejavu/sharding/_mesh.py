"""A logical view of the devices: a small grid whose axes each have a latency and a bandwidth."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import cached_property

Groups = tuple[tuple[int, ...], ...]
Samples = tuple[tuple[float, float], ...]


def interpolate(samples: Sequence[tuple[float, float]], size: float) -> float:
    """Returns the cost at a size, interpolated linearly between measured samples, or extrapolated beyond them.

    Args:
        samples: pairs of a size and its cost, sizes ascending.
        size: the size whose cost is wanted.
    """
    if len(samples) == 1:
        return samples[0][1]
    right = min(max(bisect.bisect_left([sample[0] for sample in samples], size), 1), len(samples) - 1)
    (x0, y0), (x1, y1) = samples[right - 1], samples[right]
    return y0 if x1 == x0 else y0 + (y1 - y0) * (size - x0) / (x1 - x0)


@dataclasses.dataclass(frozen=True)
class CollectiveProfile:
    """The measured seconds of collectives of several sizes, for groups of devices of a cluster.

    Attributes:
        all_reduces: for each tuple of groups of devices, (number of float32 elements, seconds) in rising order.
        all_gathers: the same for all-gathers; if it is empty, they take half as long as all-reduces.

    References:
        `alpa.mesh_profiling.ProfilingResult`.
    """

    all_reduces: Mapping[Groups, Samples]
    all_gathers: Mapping[Groups, Samples] = dataclasses.field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)

    @classmethod
    def from_dicts(cls, all_reduce: Mapping, all_gather: Mapping) -> CollectiveProfile | None:
        """Reads the measurements out of the dictionaries of Alpa's `ProfilingResult`; None if nothing was measured.

        They are {(groups, dtype): [(elements, seconds), ...]}; only float32 is used, as in Alpa.
        """

        def of_float32(table: Mapping) -> dict[Groups, Samples]:
            return {
                tuple(tuple(group) for group in groups): tuple((float(n), float(s)) for n, s in sorted(samples))
                for (groups, dtype), samples in table.items()
                if dtype == "float32"
            }

        measured = of_float32(all_reduce)
        return cls(measured, of_float32(all_gather)) if measured else None

    def _beyond_latency(self, table: Mapping[Groups, Samples], groups: Groups, elements: float) -> float:
        if groups not in table:
            raise ValueError(f"no collective was measured in the groups {groups}; measured: {sorted(table)}")
        return interpolate(table[groups], elements) - interpolate(table[groups], 0)

    def all_reduce(self, groups: Sequence[tuple[int, ...]], num_bytes: float) -> float:
        """Returns the seconds, beyond those of an empty call, of an all-reduce of `num_bytes` bytes on each device, in
        each of the groups of device ids.
        """
        return self._beyond_latency(self.all_reduces, tuple(groups), num_bytes / 4)

    def all_gather(self, groups: Sequence[tuple[int, ...]], num_bytes: float) -> float:
        """Returns the same of an all-gather, after which each device has `num_bytes` bytes."""
        if not self.all_gathers:
            return self.all_reduce(groups, num_bytes) / 2
        return self._beyond_latency(self.all_gathers, tuple(groups), num_bytes / 4)

    def all_to_all(self, groups: Sequence[tuple[int, ...]], num_bytes: float) -> float:
        """Returns the seconds of an all-to-all of `num_bytes` bytes that a group holds together, estimated from the
        measured all-gather of one device's part. As in Alpa they are multiplied by half the number of devices in a
        group.
        """
        n = len(groups[0])
        return self.all_gather(groups, num_bytes / n) * n / 2.0


@dataclasses.dataclass(frozen=True)
class LogicalMesh:
    """Devices arranged in a grid, and what a collective along one axis of it costs.

    Attributes:
        shape: the length of each axis; Alpa always uses two.
        alpha: the latency term of each axis, in cost units.
        beta: the cost of one byte on each axis, in cost units per byte.
        device_ids: the device at each place, row-major; by default 0, 1, 2, ...
        profile: measured costs; where given they replace the alpha-beta formulas.

    References:
        `alpa.shard_parallel.auto_sharding.LogicalDeviceMesh`, whose formulas these are, and section 4.1 of
        "Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning" (OSDI 2022).

    >>> LogicalMesh((4, 1)).all_reduce_cost(1000, 0)
    1501.01
    """

    shape: tuple[int, ...]
    alpha: tuple[float, ...] = ()
    beta: tuple[float, ...] = ()
    device_ids: tuple[int, ...] = ()
    profile: CollectiveProfile | None = None

    def __post_init__(self) -> None:
        if not self.shape or any(length < 1 for length in self.shape):
            raise ValueError(f"a logical mesh needs axes of length 1 or more, not {self.shape}")
        for name, default in (("alpha", 1.0), ("beta", 1.0)):
            values = getattr(self, name) or (default,) * len(self.shape)
            if len(values) != len(self.shape):
                raise ValueError(f"{name} must have one value for each of the axes {self.shape}, not {values}")
            object.__setattr__(self, name, tuple(float(value) for value in values))
        if not self.device_ids:
            object.__setattr__(self, "device_ids", tuple(range(self.num_devices)))
        if len(self.device_ids) != self.num_devices:
            raise ValueError(f"{len(self.device_ids)} device ids do not fill a mesh of shape {self.shape}")

    @property
    def num_devices(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Returns the axes that have more than one device: only these can cut a tensor."""
        return tuple(axis for axis, length in enumerate(self.shape) if length > 1)

    def groups(self, axis: int) -> tuple[tuple[int, ...], ...]:
        """Returns the groups of device ids that communicate with each other along an axis."""
        inner = math.prod(self.shape[axis + 1 :])
        length = self.shape[axis]
        starts = [i for i in range(self.num_devices) if (i // inner) % length == 0]
        return tuple(tuple(self.device_ids[start + k * inner] for k in range(length)) for start in starts)

    def all_gather_cost(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-gather along an axis after which each device has `num_bytes` bytes."""
        if self.profile is not None:
            return self.profile.all_gather(self.groups(axis), num_bytes)
        n = self.shape[axis]
        return self.alpha[axis] + self.beta[axis] * (n - 1) / n * num_bytes + 0.1

    def all_reduce_cost(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-reduce of `num_bytes` bytes on each device along an axis."""
        if self.profile is not None:
            return self.profile.all_reduce(self.groups(axis), num_bytes)
        n = self.shape[axis]
        return self.alpha[axis] + self.beta[axis] * 2 * (n - 1) / n * num_bytes + 0.01

    def reduce_scatter_cost(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of a reduce-scatter along an axis, before which each device has `num_bytes` bytes."""
        if self.profile is not None:
            return self.profile.all_gather(self.groups(axis), num_bytes)
        n = self.shape[axis]
        return self.alpha[axis] + self.beta[axis] * (n - 1) / n * num_bytes + 0.001

    def all_to_all_cost(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-to-all along an axis, which then cuts another dimension of a tensor that has
        `num_bytes` bytes before it is cut by that axis.
        """
        if self.profile is not None:
            return self.profile.all_to_all(self.groups(axis), num_bytes)
        n = self.shape[axis]
        # n/2 is Alpa's correction of the textbook cost: all-to-all falls short of it as groups grow.
        return self.alpha[axis] + self.beta[axis] * (n - 1) / n / n * num_bytes * (n / 2.0) + 0.001
