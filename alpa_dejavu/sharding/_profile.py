"""Measured costs of collectives, interpolated between the measured sizes."""

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

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
    def from_dicts(cls, all_reduce: Mapping, all_gather: Mapping) -> "CollectiveProfile | None":
        """Reads the measurements out of the dictionaries of Alpa's `ProfilingResult`; None if nothing was measured.

        Args:
            all_reduce: {(groups, dtype): [(elements, seconds), ...]}; only float32 is used, as in Alpa.
            all_gather: the same of all-gather.
        """
        def of_float32(table: Mapping) -> dict[Groups, Samples]:
            return {
                tuple(tuple(group) for group in groups): tuple((float(n), float(s)) for n, s in sorted(samples))
                for (groups, dtype), samples in table.items() if dtype == "float32"
            }

        measured = of_float32(all_reduce)
        return cls(measured, of_float32(all_gather)) if measured else None

    def _beyond_latency(self, table: Mapping[Groups, Samples], groups: Groups, elements: float) -> float:
        if groups not in table:
            raise ValueError(f"no collective was measured in the groups {groups}; measured: {sorted(table)}")
        return interpolate(table[groups], elements) - interpolate(table[groups], 0)

    def all_reduce(self, groups: Sequence[tuple[int, ...]], num_bytes: float) -> float:
        """Returns the measured seconds, beyond those of an empty call, of an all-reduce of `num_bytes` bytes.

        Args:
            groups: the groups of device ids, each of which reduces among its own devices.
            num_bytes: bytes on each device.
        """
        return self._beyond_latency(self.all_reduces, tuple(groups), num_bytes / 4)

    def all_gather(self, groups: Sequence[tuple[int, ...]], num_bytes: float) -> float:
        """Returns the measured seconds, beyond those of an empty call, of an all-gather of `num_bytes` bytes.

        Args:
            groups: the groups of device ids, each of which gathers among its own devices.
            num_bytes: bytes that each device has afterwards.
        """
        if not self.all_gathers:
            return self.all_reduce(groups, num_bytes) / 2
        return self._beyond_latency(self.all_gathers, tuple(groups), num_bytes / 4)

    def all_to_all(self, groups: Sequence[tuple[int, ...]], num_bytes: float) -> float:
        """Returns the seconds of an all-to-all, estimated from the measured all-gather of one device's part.

        As in Alpa they are multiplied by half the number of devices in a group.

        Args:
            groups: the groups of device ids, each of which exchanges among its own devices.
            num_bytes: bytes of the tensor that a group holds together.
        """
        n = len(groups[0])
        return self.all_gather(groups, num_bytes / n) * n / 2.0
