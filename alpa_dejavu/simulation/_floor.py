"""A lower bound on a pipeline's step, whatever the order of its tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alpa_dejavu.simulation._stage_times import StageTimes

__all__ = ["step_floor"]


def step_floor(stages: Sequence[StageTimes], device_of: Sequence[int], num_micro_batches: int) -> float:
    """Returns a lower bound, in seconds, on a step under any order of tasks, with backward passes split or not.

    Before a device begins, a micro-batch has gone forward to its first stage; then it does all its passes one after the
    other, and updates. And a micro-batch goes forward through all stages and back, whatever else is done.
    """

    def sent(n: int) -> tuple[float, float]:
        apart = n and device_of[n] != device_of[n - 1]
        return (stages[n - 1].forward_send_s, stages[n].backward_send_s) if apart else (0.0, 0.0)

    ways = [sent(n) for n in range(len(stages))]
    arrives = np.cumsum([0.0] + [s.forward_s for s in stages[:-1]]) + np.cumsum([ahead for ahead, _ in ways])
    once = np.array([stage.per_step_s for stage in stages])
    work = np.array([num_micro_batches * (stage.forward_s + stage.backward_s) for stage in stages]) + once
    of_devices = [[n for n, device in enumerate(device_of) if device == d] for d in range(max(device_of) + 1)]
    busy = max(float(arrives[own].min() + work[own].sum()) for own in of_devices)
    back = sum(stage.backward_s - stage.backward_weight_s for stage in stages) + sum(back for _, back in ways)
    through = float(arrives[-1]) + stages[-1].forward_s + back
    return max(busy, through + stages[0].backward_weight_s + float(once[0]))
