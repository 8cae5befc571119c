"""Whether the activations that an order of tasks keeps fit into the memory of its devices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.schedules import KEPT, KINDS, TaskTable
from alpa_dejavu.simulation._stage_times import StageTimes

__all__ = ["activation_room", "fits"]

_CHANGE = np.array([KEPT[kind] for kind in KINDS])


def activation_room(stages: Sequence[StageTimes], device_of: Sequence[int]) -> FloatArray:
    """Returns the bytes that each device has for activations, beside what is resident and temporary; shape (D,)."""
    found = []
    for device in range(max(device_of) + 1):
        own = [stage for stage, on in zip(stages, device_of, strict=True) if on == device]
        limit = min(stage.memory_limit_bytes for stage in own)
        found.append(limit - sum(s.resident_bytes for s in own) - max(s.temporary_bytes for s in own))
    return np.array(found)


def fits(table: TaskTable, each: FloatArray, room: FloatArray) -> bool:
    """Returns whether no device keeps more than it has room for, at any task of an order.

    Args:
        table: the tasks of each device, in order.
        each: the bytes that a stage keeps for a micro-batch, shape (S,).
        room: the bytes that each device has for activations, shape (D,).
    """
    if np.isinf(room).all():
        return True
    change = _CHANGE[table.kind] * each[table.stage]
    ends = np.searchsorted(table.device, np.arange(len(room)), side="right")
    whole = np.cumsum(change)
    # All that a device keeps is gone when its list ends, so each begins at nothing.
    peaks = np.maximum.reduceat(whole, np.concatenate([[0], ends[:-1]]))
    return bool((peaks <= room * (1 + 1e-12)).all())
