"""Orders in which each device does, whenever it is free, the most urgent of the tasks that are there to be done."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np

from alpa_dejavu.schedules import KINDS, TaskTable
from alpa_dejavu.simulation._order_memory import activation_room
from alpa_dejavu.simulation._stage_times import StageTimes

__all__ = ["greedy_orders"]

_FORWARD, _INPUT, _WEIGHT = "F", "I", "W"


def greedy_orders(stages: Sequence[StageTimes], device_of: Sequence[int], size: int) -> Iterator[TaskTable]:
    """Yields orders of S stages' tasks for B micro-batches, for two rules of what is urgent.

    Backward passes by inputs go before forward passes, or those before these as long as there is room; the later stage
    of a device goes first. Backward passes by weights fill the gaps, and make room. None is yielded for a rule that
    ends with devices that are full.
    """
    for urgent in ((_INPUT, _FORWARD), (_FORWARD, _INPUT)):
        found = _greedy(stages, device_of, size, urgent)
        if found is not None:
            yield found


def _greedy(
    stages: Sequence[StageTimes], device_of: Sequence[int], size: int, urgent: tuple[str, str]
) -> TaskTable | None:
    last, num_devices = len(stages) - 1, max(device_of) + 1
    room = activation_room(stages, device_of)
    # The bytes that a device must leave free for the micro-batches that it has begun to go through its later stages.
    later = [
        max((stages[s].activation_bytes for s in range(n + 1, last + 1) if device_of[s] == device_of[n]), default=0.0)
        for n in range(last + 1)
    ]
    kept = np.zeros(num_devices)
    free = [0.0] * num_devices
    ready: list[list[tuple[int, int, int, str]]] = [[] for _ in range(num_devices)]
    weights: list[list[tuple[int, int]]] = [[] for _ in range(num_devices)]
    rows: list[list[tuple[int, int, int, int]]] = [[] for _ in range(num_devices)]
    events: list[tuple[float, int, int, int, str]] = []

    def comes(at_s: float, kind: str, stage: int, batch: int) -> None:
        heapq.heappush(events, (at_s, batch, stage, device_of[stage], kind))

    for batch in range(size):
        comes(0.0, _FORWARD, 0, batch)
    while events:
        now = events[0][0]
        while events and events[0][0] <= now:
            _, batch, stage, device, kind = heapq.heappop(events)
            if kind:
                heapq.heappush(ready[device], (urgent.index(kind), -stage, batch, kind))
        for device in range(num_devices):
            if free[device] > now:
                continue
            held = []
            chosen: tuple[str, int, int] | None = None
            while ready[device] and chosen is None:
                entry = heapq.heappop(ready[device])
                _, negative, batch, kind = entry
                stage = -negative
                needed = stages[stage].activation_bytes + later[stage]
                if kind == _FORWARD and kept[device] + needed > room[device] * (1 + 1e-12):
                    held.append(entry)
                else:
                    chosen = kind, stage, batch
            for entry in held:
                heapq.heappush(ready[device], entry)
            if chosen is None and weights[device]:
                chosen = (_WEIGHT, *weights[device].pop(0))
            if chosen is None:
                continue
            kind, stage, batch = chosen
            of = stages[stage]
            takes_s = {
                _FORWARD: of.forward_s, _INPUT: of.backward_s - of.backward_weight_s, _WEIGHT: of.backward_weight_s,
            }[kind]  # fmt: skip
            end = free[device] = now + takes_s
            rows[device].append((KINDS.index(kind), stage, batch, device))
            comes(end, "", stage, batch)
            if kind == _WEIGHT:
                kept[device] -= of.activation_bytes
            elif kind == _FORWARD:
                kept[device] += of.activation_bytes
                if stage < last:
                    apart = device_of[stage + 1] != device
                    comes(end + of.forward_send_s * apart, _FORWARD, stage + 1, batch)
                else:
                    comes(end, _INPUT, stage, batch)
            else:
                weights[device].append((stage, batch))
                if stage:
                    apart = device_of[stage - 1] != device
                    comes(end + of.backward_send_s * apart, _INPUT, stage - 1, batch)
    found = np.array([entry for row in rows for entry in row], dtype=np.int64)
    if len(found) < 3 * size * len(stages):
        return None
    return TaskTable(*np.ascontiguousarray(found.T))
