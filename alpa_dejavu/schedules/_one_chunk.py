"""Schedules with one stage on each device, and interleaved 1F1B, with a chunk from each round through the pipeline.

References:
    Huang et al., GPipe, NeurIPS 2019. Narayanan et al., PipeDream, SOSP 2019, and Memory-Efficient Pipeline-Parallel
    DNN Training, ICML 2021 (1F1B). Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024 (ZB-H1). Alpa 0.2.3,
    alpa/pipeline_parallel/schedules.py (overlap-friendly 1F1B, inference).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._task import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, TaskTable

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
    stage, batch = _stages_and_batches(num_devices, num_micro_batches)
    passes = (FORWARD, stage, batch, stage, batch), (BACKWARD, stage, batch, stage, batch + num_micro_batches)
    return Schedule("gpipe", TaskTable.by_turns(passes))


def inference(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns the schedule of forwards alone."""
    stage, batch = _stages_and_batches(num_devices, num_micro_batches)
    return Schedule("inference", TaskTable.by_turns([(FORWARD, stage, batch, stage, batch)]))


def one_f_one_b(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns 1F1B: a device does as many forwards as stages follow it, and then a forward after each backward."""
    ahead = num_devices - np.arange(num_devices)
    return Schedule("1f1b", _alternating(num_micro_batches, ahead))


def overlap_friendly(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns 1F1B with about twice as many forwards at first, so that transfers have time while others compute."""
    ahead = 2 * (num_devices - np.arange(num_devices)) - 1
    return Schedule("1f1b_overlap_friendly", _alternating(num_micro_batches, ahead))


def pipedream(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns the order of 1F1B with an update after each backward: no flush, but gradients of stashed, older weights.

    A stage that n others follow keeps n + 1 versions of its weights.
    """
    return Schedule("pipedream", one_f_one_b(num_devices, num_micro_batches).table, updates_each=True)


def zb_h1(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns ZB-H1: 1F1B whose backwards by weights wait, on device d for d micro-batches, and so fill its bubbles.

    No device keeps more activations than 1F1B's first one does.
    """
    stage, batch = _stages_and_batches(num_devices, num_micro_batches)
    passes = (
        (FORWARD, stage, batch, stage, batch - (num_devices - stage) + 0.5),
        (BACKWARD_INPUT, stage, batch, stage, batch),
        (BACKWARD_WEIGHT, stage, batch, stage, batch + stage + 0.25),
    )
    return Schedule("zb_h1", TaskTable.by_turns(passes))


def _stages_and_batches(num_devices: int, num_micro_batches: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(num_devices)[:, None], np.arange(num_micro_batches)[None, :]


def _alternating(num_micro_batches: int, ahead: NDArray[np.int64]) -> TaskTable:
    """Returns the tasks of devices that do so many forwards at first, and then a backward and a forward in turns."""
    stage, batch = _stages_and_batches(len(ahead), num_micro_batches)
    forward = FORWARD, stage, batch, stage, batch - ahead[:, None] + 0.5
    return TaskTable.by_turns([forward, (BACKWARD, stage, batch, stage, batch)])


def interleaved(num_devices: int, num_micro_batches: int, chunks: int = 2) -> Schedule:
    """Returns interleaved 1F1B: stage s of p times v is on device s mod p, and micro-batches go by groups of p.

    Raises:
        ValueError: the micro-batches aren't a multiple of the devices.

    References:
        Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
    """
    check_interleaved(num_devices, num_micro_batches)
    device, number = _stages_and_batches(num_devices, num_micro_batches * chunks)
    group, within = np.divmod(number, num_devices * chunks)
    chunk, batch = np.divmod(within, num_devices)
    batch = batch + group * num_devices
    ahead = 2 * (num_devices - device - 1) + (chunks - 1) * num_devices + 1
    passes = (
        (FORWARD, chunk * num_devices + device, batch, device, number - ahead + 0.5),
        (BACKWARD, (chunks - 1 - chunk) * num_devices + device, batch, device, number),
    )
    name = "interleaved" if chunks == 2 else f"interleaved_{chunks}"
    return Schedule(name, TaskTable.by_turns(passes))


def check_interleaved(num_devices: int, num_micro_batches: int) -> None:
    """Raises ValueError unless the schedule can have so many micro-batches on so many devices."""
    if num_micro_batches % num_devices:
        least = num_micro_batches - num_micro_batches % num_devices or num_devices
        raise ValueError(
            f"num_micro_batches is {num_micro_batches}, but must be a multiple of the {num_devices} devices in the "
            f"interleaved schedule; take {least} or {least + num_devices}, or another schedule"
        )
