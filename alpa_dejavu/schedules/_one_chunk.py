"""Schedules with one stage on each device, and interleaved 1F1B, with a chunk from each round through the pipeline.

References:
    Huang et al., GPipe, NeurIPS 2019. Narayanan et al., PipeDream, SOSP 2019, and Memory-Efficient Pipeline-Parallel
    DNN Training, ICML 2021 (1F1B). Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024 (ZB-H1). Alpa 0.2.3,
    alpa/pipeline_parallel/schedules.py (overlap-friendly 1F1B, inference).
"""

from __future__ import annotations

from collections.abc import Iterator

from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._task import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Task

__all__ = [
    "check_interleaved",
    "gpipe",
    "inference",
    "interleaved",
    "one_f_one_b",
    "overlap_friendly",
    "pipedream",
    "zb_h1",
]


def gpipe(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns the schedule of all forwards first, then all backwards."""
    rows = (
        (*_all(FORWARD, device, num_micro_batches), *_all(BACKWARD, device, num_micro_batches))
        for device in range(num_devices)
    )
    return Schedule("gpipe", tuple(rows))


def inference(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns the schedule of forwards alone."""
    return Schedule("inference", tuple(tuple(_all(FORWARD, d, num_micro_batches)) for d in range(num_devices)))


def one_f_one_b(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns 1F1B: a device does as many forwards as stages follow it, and then a forward after each backward."""
    rows = (_alternating(d, num_micro_batches, num_devices - d) for d in range(num_devices))
    return Schedule("1f1b", tuple(map(tuple, rows)))


def overlap_friendly(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns 1F1B with about twice as many forwards at first, so that transfers have time while others compute."""
    rows = (_alternating(d, num_micro_batches, 2 * (num_devices - d) - 1) for d in range(num_devices))
    return Schedule("1f1b_overlap_friendly", tuple(map(tuple, rows)))


def pipedream(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns the order of 1F1B with an update after each backward: no flush, but gradients of stashed, older weights.

    A stage that n others follow keeps n + 1 versions of its weights.
    """
    return Schedule("pipedream", one_f_one_b(num_devices, num_micro_batches).tasks, updates_each=True)


def zb_h1(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns ZB-H1: 1F1B whose backwards by weights wait, on device d for d micro-batches, and so fill its bubbles.

    No device keeps more activations than 1F1B's first one does.
    """

    def row(device: int) -> Iterator[Task]:
        ahead = min(num_devices - device, num_micro_batches)
        yield from _all(FORWARD, device, ahead)
        for batch in range(num_micro_batches):
            yield Task(BACKWARD_INPUT, device, batch)
            if batch >= device:
                yield Task(BACKWARD_WEIGHT, device, batch - device)
            if batch + ahead < num_micro_batches:
                yield Task(FORWARD, device, batch + ahead)
        for batch in range(max(num_micro_batches - device, 0), num_micro_batches):
            yield Task(BACKWARD_WEIGHT, device, batch)

    return Schedule("zb_h1", tuple(tuple(row(device)) for device in range(num_devices)))


def _all(kind: str, stage: int, num_micro_batches: int) -> Iterator[Task]:
    return (Task(kind, stage, batch) for batch in range(num_micro_batches))


def _alternating(stage: int, num_micro_batches: int, ahead: int) -> Iterator[Task]:
    """Yields so many forwards at first, and then a backward and a forward in turns."""
    ahead = min(ahead, num_micro_batches)
    yield from _all(FORWARD, stage, ahead)
    for batch in range(num_micro_batches):
        yield Task(BACKWARD, stage, batch)
        if batch + ahead < num_micro_batches:
            yield Task(FORWARD, stage, batch + ahead)


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
    """Raises ValueError unless the schedule can have so many micro-batches on so many devices."""
    if num_micro_batches % num_devices:
        least = num_micro_batches - num_micro_batches % num_devices or num_devices
        raise ValueError(
            f"num_micro_batches is {num_micro_batches}, but must be a multiple of the {num_devices} devices in the "
            f"interleaved schedule; take {least} or {least + num_devices}, or another schedule"
        )
