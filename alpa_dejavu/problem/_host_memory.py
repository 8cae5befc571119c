"""A host's memory beside that of its devices: how much there is, and how fast tensors come and go."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.problem import checks


@final
@dataclasses.dataclass(frozen=True)
class Nvme:
    """The NVMe drives of a host, all together.

    Attributes:
        num_bytes: how many bytes they hold.
        read_bytes_per_s, write_bytes_per_s: rates of large reads and writes, one of them at a time.
    """

    num_bytes: float
    read_bytes_per_s: float
    write_bytes_per_s: float

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            checks.positive("nvme", field.name, getattr(self, field.name))


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

    num_bytes: float
    bytes_per_s: float
    device_bytes_per_s: float
    shared_bytes_per_s: float
    nvme: Nvme | None = None

    def __post_init__(self) -> None:
        for field in ("num_bytes", "bytes_per_s", "device_bytes_per_s", "shared_bytes_per_s"):
            checks.positive("host memory", field, getattr(self, field))

    def copied_bytes_per_s(self, num_devices: int) -> float:
        """Returns the rate of copies between the host's memory and each of its devices, each way, while all of so many
        devices copy.
        """
        return min(self.device_bytes_per_s, self.shared_bytes_per_s / num_devices)
