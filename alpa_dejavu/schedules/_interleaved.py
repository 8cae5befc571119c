"""Interleaved 1F1B: each device has several chunks of the model, one from each round through the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._task import BACKWARD, FORWARD, Task

__all__ = ["check_interleaved", "interleaved"]


def interleaved(num_devices: int, num_micro_batches: int, chunks: int = 2) -> Schedule:
    """Returns interleaved 1F1B: stage s of p times v is on device s mod p, and micro-batches go by groups of p.

    Raises:
        ValueError: the micro-batches aren't a multiple of the devices.

    References:
        Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
    """
    check_interleaved(num_devices, num_micro_batches)
    total = num_micro_batches * chunks

    def task(kind: str, device: int, number: int) -> Task:
        """Returns a device's task of a kind, by its number among them."""
        group, within = divmod(number, num_devices * chunks)
        chunk, batch = divmod(within, num_devices)
        stage = (chunk if kind == FORWARD else chunks - 1 - chunk) * num_devices + device
        return Task(kind, stage, group * num_devices + batch)

    def row(device: int) -> Iterator[Task]:
        ahead = min(2 * (num_devices - device - 1) + (chunks - 1) * num_devices + 1, total)
        yield from (task(FORWARD, device, number) for number in range(ahead))
        for number in range(total):
            yield task(BACKWARD, device, number)
            if number + ahead < total:
                yield task(FORWARD, device, number + ahead)

    name = "interleaved" if chunks == 2 else f"interleaved_{chunks}"
    return Schedule(name, tuple(tuple(row(device)) for device in range(num_devices)))


def check_interleaved(num_devices: int, num_micro_batches: int) -> None:
    """Checks that the schedule can have so many micro-batches on so many devices.

    Raises:
        ValueError: it can't; says how many it can have.
    """
    if num_micro_batches % num_devices:
        least = num_micro_batches - num_micro_batches % num_devices or num_devices
        raise ValueError(
            f"num_micro_batches is {num_micro_batches}, but must be a multiple of the {num_devices} devices in the "
            f"interleaved schedule; take {least} or {least + num_devices}, or another schedule"
        )
