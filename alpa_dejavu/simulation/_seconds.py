"""How long the tasks of a step take: an entry for each kind of task of each stage."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.simulation._program import BACKWARD, BACKWARD_WEIGHT, UPDATE, Program
from alpa_dejavu.simulation._stage_times import StageTimes

__all__ = ["stage_seconds", "task_entries"]

_LAST_BACKWARD, _LAST_WEIGHT = BACKWARD_WEIGHT + 1, BACKWARD_WEIGHT + 2
"""The last backward of a stage, or its part by weights, has an entry of its own: gradients are synchronised in it."""


def stage_seconds(stages: Sequence[StageTimes], trains: bool) -> NDArray[np.float64]:
    """Returns how many seconds each of 13 kinds of tasks (forward, backward, transfers, update, ...) takes on each of S
    pipeline stages, stage by stage; shape (13 S,).

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
                stage.backward_s - stage.backward_weight_s,
                stage.backward_weight_s,
                stage.backward_s + stage.synchronisation_s,
                stage.backward_weight_s + stage.synchronisation_s,
            ]
            for stage in stages
        ]
    ).ravel()


def task_entries(tasks: Program) -> NDArray[np.int64]:
    """Returns for each of N tasks of a pipeline's step the index of its seconds in what `stage_seconds` returns, an
    array of seconds by stage and kind of task; shape (N,).
    """
    entry = tasks.kind.copy()
    gives = np.flatnonzero((tasks.kind == BACKWARD) | (tasks.kind == BACKWARD_WEIGHT))
    if (tasks.kind == UPDATE).sum() == len(gives):
        last = gives  # each micro-batch's gradients are synchronised, and update the weights
    else:
        last = np.array([gives[tasks.stage[gives] == stage][-1] for stage in np.unique(tasks.stage[gives])], np.int64)
    entry[last] = np.where(tasks.kind[last] == BACKWARD, _LAST_BACKWARD, _LAST_WEIGHT)
    return np.asarray(tasks.stage * (_LAST_WEIGHT + 1) + entry, dtype=np.int64)
