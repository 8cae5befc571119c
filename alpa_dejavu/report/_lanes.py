"""A timeline as the page's script takes it: starts and ends of the tasks as packed floats."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.simulation.step import Timeline


def lanes(timeline: Timeline) -> dict[str, Any]:
    """Returns a timeline as the data that `timeline.js` draws: each stage's tasks, collectives and sends in a step, and
    the lane of each stage, which stages on the same submesh share.

    Starts and ends of tasks in seconds are little-endian float32 in base64, of shape (S, B, 2) for S stages and B
    micro-batches, for the update (S, 1, 2); NaN where there is no task.
    """
    stages = timeline.stages
    return {
        "stages": timeline.num_stages,
        "lanes": timeline.schedule.num_devices,
        "laneOf": list(timeline.schedule.device_of),
        "microBatches": timeline.num_micro_batches,
        "stepSeconds": timeline.step_s,
        "forward": _packed(timeline.forward_s),
        "backward": _packed(timeline.backward_s),
        **({"weight": _packed(timeline.weight_s)} if timeline.schedule.splits else {}),
        "forwardSend": _packed(timeline.forward_send_s),
        "backwardSend": _packed(timeline.backward_send_s),
        "update": _packed(timeline.update_s),
        "forwardCollective": timeline.collective_shares("forward")[:, 0].tolist(),
        "backwardCollective": timeline.collective_shares("backward")[:, 0].tolist(),
        "lastBackwardCollective": timeline.collective_shares("backward")[:, -1].tolist(),
        "blocking": timeline.blocking,
        "sends": any(stage.forward_send_s or stage.backward_send_s for stage in stages),
    }


def lane_names(timeline: Timeline) -> list[str]:
    """Returns the name of each lane: of the stage, or of the stages, on a submesh."""
    numbers = [", ".join(map(str, stages)) for stages in timeline.schedule.stages_on]
    return [f"{'stages' if ',' in text else 'stage'} {text}" for text in numbers]


def _packed(values: NDArray[np.float64]) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")
