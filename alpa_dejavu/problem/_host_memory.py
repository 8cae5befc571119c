"""A host's memory beside that of its devices: how much there is, and how fast tensors come and go."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, final

from alpa_dejavu._util.dataclass_format import Rare
from alpa_dejavu._util.format_fields import GivenPositive, stated
from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class Nvme:
    """The NVMe drives of a host, all together.

    Attributes:
        num_bytes: how many bytes they hold.
        read_bytes_per_s, write_bytes_per_s: rates of large reads and writes, one of them at a time.
    """

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
        num_bytes: the bytes of it that training may use.
        bytes_per_s: its bandwidth, reads and writes together, as the optimizer's update on the host's processors
            reaches it.
        device_bytes_per_s: the rate of copies between it and one device, each way, while the others copy nothing.
        shared_bytes_per_s: the rate of such copies of all devices of the host together, each way.
        nvme: the host's NVMe drives; None: there are none, or nothing is known of them.
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
        num_bytes: the bytes of the host's memory.
        bytes_per_s: the bandwidth of that memory, reads and writes together.
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
