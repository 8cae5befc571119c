"""DualPipe-V: micro-batches enter at the first device and come back to it, forwards of one beside backwards of another.

References:
    DeepSeek-AI, DeepSeek-V3 Technical Report, 2024 (DualPipe). Qi, DualPipe could be better without the Dual, 2025.
"""

from __future__ import annotations

from collections.abc import Iterator

from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._task import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Task

__all__ = ["check_dualpipe_v", "dualpipe_v"]


def dualpipe_v(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns DualPipe-V: stage s of 2 p is on device s, or on 2 p - 1 - s, as in a V.

    Raises:
        ValueError: there are fewer micro-batches than stages.
    """
    check_dualpipe_v(num_devices, num_micro_batches)
    rows = (_row(device, num_devices, num_micro_batches) for device in range(num_devices))
    return Schedule("dualpipe_v", tuple(map(tuple, rows)))


def _row(device: int, num_devices: int, size: int) -> Iterator[Task]:
    """Yields a device's tasks: filling, a steady part of a forward and a backward of either chunk in turns, draining.

    Backwards are split where nothing else could fill a bubble; their parts by weights wait in a queue.
    """
    stages = (device, 2 * num_devices - 1 - device)
    behind = num_devices - 1 - device
    counts: dict[tuple[str, int], int] = {}
    weights: list[Task] = []

    def number(kind: str, chunk: int) -> int:
        found = counts.get((kind, chunk), 0)
        counts[kind, chunk] = found + 1
        return found

    def forward(chunk: int) -> Task:
        return Task(FORWARD, stages[chunk], number(FORWARD, chunk))

    def backward(chunk: int, split: bool = False) -> Task:
        batch = number(BACKWARD, chunk)
        if split:
            weights.append(Task(BACKWARD_WEIGHT, stages[chunk], batch))
        return Task(BACKWARD_INPUT if split else BACKWARD, stages[chunk], batch)

    for _ in range(2 * behind):
        yield forward(0)
    for _ in range(device + 1):
        yield forward(0)
        yield forward(1)
    for _ in range(behind):
        yield backward(1, split=True)
        yield weights.pop(0)
        yield forward(1)
    for _ in range(size - 2 * num_devices + device + 1):
        yield forward(0)
        yield backward(1)
        yield forward(1)
        yield backward(0)
    for _ in range(behind):
        yield backward(1)
        yield forward(1)
        yield backward(0)
    # The second half of these 2 (device + 1) backwards is split.
    for n in range(device + 1):
        yield backward(1, split=2 * n >= device + 1)
        yield backward(0, split=2 * n + 1 >= device + 1)
    for _ in range(behind):
        yield weights.pop(0)
        yield backward(0, split=True)
    while weights:
        yield weights.pop(0)


def check_dualpipe_v(num_devices: int, num_micro_batches: int) -> None:
    """Checks that the schedule can have so many micro-batches on so many devices.

    Raises:
        ValueError: it can't; says how many it can have.
    """
    if num_micro_batches < 2 * num_devices:
        raise ValueError(
            f"num_micro_batches is {num_micro_batches}, but must be at least {2 * num_devices} in dualpipe_v on "
            f"{num_devices} devices; take more micro-batches, or zb_v"
        )
