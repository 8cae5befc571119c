"""How long the tasks of a step take: an entry for each kind of task of each stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.simulation._program import BACKWARD, POSTS, Program
from alpa_dejavu.simulation._stage_times import StageTimes

__all__ = ["stage_seconds", "task_entries"]

_LAST_BACKWARD = POSTS[-1] + 1
"""The backward of the last micro-batch has an entry of its own: gradients are synchronised in it."""


def stage_seconds(stages: Sequence[StageTimes], trains: bool) -> NDArray[np.float64]:
    """Returns how many seconds each of 10 kinds of tasks (forward, backward, transfers, update, ...) takes on each of S
    pipeline stages, stage by stage; shape (10 S,).

    Receiving from a mailbox takes none. `trains` says whether the step trains: inference synchronises no gradients.
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
                stage.backward_s + stage.synchronisation_s,
            ]
            for stage in stages
        ]
    ).ravel()


def task_entries(tasks: Program, num_micro_batches: int) -> NDArray[np.int64]:
    """Returns for each of N tasks of a pipeline's step the index of its seconds in what `stage_seconds` returns, an
    array of seconds by stage and kind of task; shape (N,).
    """
    last = (tasks.kind == BACKWARD) & (tasks.micro_batch == num_micro_batches - 1)
    return np.asarray(tasks.stage * (_LAST_BACKWARD + 1) + np.where(last, _LAST_BACKWARD, tasks.kind), dtype=np.int64)
