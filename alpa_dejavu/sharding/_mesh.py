"""A logical view of the devices: a small grid whose axes each have a latency and a bandwidth."""

import dataclasses
import math
from functools import cached_property

from alpa_dejavu.sharding._profile import CollectiveProfile


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
        """Returns the number of devices in the logical mesh."""
        return math.prod(self.shape)

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """Returns the axes of the mesh that have more than one device: only these can cut a tensor."""
        return tuple(axis for axis, length in enumerate(self.shape) if length > 1)

    def groups(self, axis: int) -> tuple[tuple[int, ...], ...]:
        """Returns the groups of device ids that communicate with each other along an axis of the mesh."""
        inner = math.prod(self.shape[axis + 1:])
        length = self.shape[axis]
        starts = [i for i in range(self.num_devices) if (i // inner) % length == 0]
        return tuple(tuple(self.device_ids[start + k * inner] for k in range(length)) for start in starts)

    def all_gather_cost(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-gather along a mesh axis after which each device has `num_bytes` bytes."""
        if self.profile is not None:
            return self.profile.all_gather(self.groups(axis), num_bytes)
        n = self.shape[axis]
        return self.alpha[axis] + self.beta[axis] * (n - 1) / n * num_bytes + 0.1

    def all_reduce_cost(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-reduce of a tensor of `num_bytes` bytes over the devices along a mesh axis."""
        if self.profile is not None:
            return self.profile.all_reduce(self.groups(axis), num_bytes)
        n = self.shape[axis]
        return self.alpha[axis] + self.beta[axis] * 2 * (n - 1) / n * num_bytes + 0.01

    def all_to_all_cost(self, num_bytes: float, axis: int) -> float:
        """Returns the cost of an all-to-all along a mesh axis: it then cuts another dimension of the tensor.

        The tensor has `num_bytes` bytes before it is cut by that axis.
        """
        if self.profile is not None:
            return self.profile.all_to_all(self.groups(axis), num_bytes)
        n = self.shape[axis]
        # n/2 is Alpa's correction of the textbook cost: all-to-all falls short of it as groups grow.
        return self.alpha[axis] + self.beta[axis] * (n - 1) / n / n * num_bytes * (n / 2.0) + 0.001
