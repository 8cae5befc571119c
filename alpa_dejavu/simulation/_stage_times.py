"""The times and bytes of a stage that the simulation needs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import checks
from alpa_dejavu.simulation._program import BACKWARD, BACKWARD_WEIGHT, UPDATE, StepProgram

__all__ = ["StageTimes", "stage_seconds", "task_entries"]


@final
@dataclasses.dataclass(frozen=True)
class StageTimes:
    """The seconds and bytes of one pipeline stage, as the simulation of a step takes them.

    A transfer of 0 s doesn't happen: its receiver goes on as soon as what it needs is computed.

    Attributes:
        forward_s, backward_s: the passes of one micro-batch, collectives included.
        per_step_s: what comes once a step: synchronisation of the gradients, and the optimizer's update.
        forward_send_s, backward_send_s: one micro-batch's transfer to the next stage, and to the previous one.
        forward_collective_s, backward_collective_s: the part of `forward_s` and `backward_s` that is collectives.
        synchronisation_s: the part of `per_step_s` that synchronises gradients. Alpa compiles it into the last
            micro-batch's backward, so the stages before wait for it.
        activation_bytes: kept on each device for one micro-batch between its forward and its backward.
        resident_bytes: kept on each device all the time.
        temporary_bytes: kept on each device while it computes.
        memory_limit_bytes: the memory of each device.
        forward_post_s, backward_post_s: how long posting a transfer holds up the sending stage itself, if sends are
            "buffered" and the transfer takes time.
        backward_weight_s: the part of `backward_s` that computes the gradients of weights, which schedules that split
            backward passes may put off.
        start_s: from the step's start until the stage can begin, where the program launches one stage after the other.
        forward_copies_s, backward_copies_s, host_step_s: the parts of `forward_collective_s`, `backward_collective_s`
            and `per_step_s` that are copies to the stage's hosts and back, and the hosts' work.
        devices: how many devices the stage has; it only matters where devices share cores.
        apart: whether each of them is a process of its own; it only matters there, too.
        streams: whether its devices compute while they send to other stages and receive from them.

    Raises ValueError for what is negative or not finite, and for a part that is larger than its whole.
    """

    forward_s: float
    backward_s: float
    per_step_s: float = 0.0
    forward_send_s: float = 0.0
    backward_send_s: float = 0.0
    forward_collective_s: float = 0.0
    backward_collective_s: float = 0.0
    synchronisation_s: float = 0.0
    activation_bytes: float = 0.0
    resident_bytes: float = 0.0
    temporary_bytes: float = 0.0
    memory_limit_bytes: float = math.inf
    devices: int = 1
    start_s: float = 0.0
    forward_post_s: float = 0.0
    backward_post_s: float = 0.0
    backward_weight_s: float = 0.0
    streams: bool = False
    apart: bool = False
    forward_copies_s: float = 0.0
    backward_copies_s: float = 0.0
    host_step_s: float = 0.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if field.name not in ("memory_limit_bytes", "devices", "streams", "apart"):
                checks.not_negative("stage", field.name, getattr(self, field.name))
        checks.positive("stage", "devices", self.devices)
        if not self.memory_limit_bytes > 0:
            raise ValueError(f"stage: memory_limit_bytes is {self.memory_limit_bytes!r}, but must be above 0")
        for part, whole in (
            ("forward_collective_s", "forward_s"),
            ("backward_collective_s", "backward_s"),
            ("backward_weight_s", "backward_s"),
            ("synchronisation_s", "per_step_s"),
            ("forward_copies_s", "forward_collective_s"),
            ("backward_copies_s", "backward_collective_s"),
            ("host_step_s", "per_step_s"),
        ):
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(
                    f"stage: {part} is {getattr(self, part)!r}, but it is a part of {whole}, {getattr(self, whole)!r}"
                )


_LAST_BACKWARD, _LAST_WEIGHT = BACKWARD_WEIGHT + 1, BACKWARD_WEIGHT + 2
"""The last backward of a stage, or its part by weights, has an entry of its own: gradients are synchronised in it."""


def stage_seconds(stages: Sequence[StageTimes], trains: bool) -> NDArray[np.float64]:
    """Returns how many seconds each of 13 kinds of tasks (forward, backward, transfers, update, ...) takes on each of S
    stages, stage by stage; shape (13 S,). Receiving from a mailbox takes none, and inference synchronises no gradients.
    """
    return np.array(
        [
            [
                stage.forward_s,
                stage.backward_s,
                stage.forward_send_s,
                stage.backward_send_s,
                stage.per_step_s - (stage.synchronisation_s if trains else 0.0),
                0.0,
                stage.start_s,
                stage.forward_post_s,
                stage.backward_post_s,
                stage.backward_s - stage.backward_weight_s,
                stage.backward_weight_s,
                stage.backward_s + stage.synchronisation_s,
                stage.backward_weight_s + stage.synchronisation_s,
            ]
            for stage in stages
        ]
    ).ravel()


def task_entries(tasks: StepProgram) -> NDArray[np.int64]:
    """Returns for each of N tasks of a step the index of its seconds in what `stage_seconds` returns; shape (N,)."""
    entry = tasks.kind.copy()
    gives = np.flatnonzero((tasks.kind == BACKWARD) | (tasks.kind == BACKWARD_WEIGHT))
    if (tasks.kind == UPDATE).sum() == len(gives):
        last = gives  # each micro-batch's gradients are synchronised, and update the weights
    else:
        last = np.array([gives[tasks.stage[gives] == stage][-1] for stage in np.unique(tasks.stage[gives])], np.int64)
    entry[last] = np.where(tasks.kind[last] == BACKWARD, _LAST_BACKWARD, _LAST_WEIGHT)
    return np.asarray(tasks.stage * (_LAST_WEIGHT + 1) + entry, dtype=np.int64)
