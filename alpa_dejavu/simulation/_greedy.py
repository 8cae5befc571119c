"""Orders in which each device does, whenever it is free, the most urgent of the tasks that are there to be done."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.schedules import KEPT, KINDS, Task, TaskTable
from alpa_dejavu.simulation._stage_times import StageTimes

__all__ = ["activation_room", "fits", "greedy_orders", "step_floor"]

_FORWARD, _INPUT, _WEIGHT = _PASSES = ("F", "I", "W")
_ROUNDING = 1e-12


def greedy_orders(stages: Sequence[StageTimes], device_of: Sequence[int], size: int) -> Iterator[TaskTable]:
    """Yields orders of S stages' tasks for B micro-batches, for two rules of what is urgent.

    Backward passes by inputs go before forward passes, or those before these as long as there is room; the later stage
    of a device goes first. Backward passes by weights fill the gaps, and make room. None is yielded for a rule that
    ends with devices that are full.
    """
    for urgent in ((_INPUT, _FORWARD), (_FORWARD, _INPUT)):
        order = _Greedy(stages, device_of, size, urgent).order()
        if order is not None:
            yield order


@final
@dataclasses.dataclass
class _SimulatedDevice:
    """A device in the course of time: until when it computes, what it keeps, what it may do, and what it has done."""

    room_bytes: float
    free_s: float = 0.0
    kept_bytes: float = 0.0
    ready: list[tuple[int, int, int, Task]] = dataclasses.field(default_factory=list)
    weights: list[Task] = dataclasses.field(default_factory=list)
    done: list[Task] = dataclasses.field(default_factory=list)


@final
class _Greedy:
    """A run of a pipeline in time, in which what can be done is done."""

    def __init__(
        self, stages: Sequence[StageTimes], device_of: Sequence[int], size: int, urgent: tuple[str, str]
    ) -> None:
        self._stages, self._device_of, self._size, self._urgent = stages, device_of, size, urgent
        self._devices = [_SimulatedDevice(float(room_bytes)) for room_bytes in activation_room(stages, device_of)]
        # The bytes that a device leaves free for the micro-batches that have its later stages still to go through.
        self._later = [
            max((stages[s].activation_bytes for s in range(n + 1, len(stages)) if device_of[s] == device_of[n]),
                default=0.0)
            for n in range(len(stages))
        ]  # fmt: skip
        self._events: list[tuple[float, int, int, str]] = []

    def order(self) -> TaskTable | None:
        for batch in range(self._size):
            self._comes(0.0, Task(_FORWARD, 0, batch))
        while self._events:
            now_s = self._events[0][0]
            while self._events and self._events[0][0] <= now_s:
                _, batch, stage, kind = heapq.heappop(self._events)
                if kind:
                    entry = self._urgent.index(kind), -stage, batch, Task(kind, stage, batch)
                    heapq.heappush(self._devices[self._device_of[stage]].ready, entry)
            for device in self._devices:
                if device.free_s <= now_s and (chosen := self._chosen(device)) is not None:
                    self._do(device, chosen, now_s)
        rows = [device.done for device in self._devices]
        ended = sum(map(len, rows)) == len(_PASSES) * self._size * len(self._stages)
        return TaskTable.of(rows) if ended else None

    def _chosen(self, device: _SimulatedDevice) -> Task | None:
        """Takes the most urgent task that has room from those that a device may do; None: there is none."""
        put_back = []
        chosen = None
        while device.ready and chosen is None:
            entry = heapq.heappop(device.ready)
            task = entry[-1]
            needed = device.kept_bytes + self._stages[task.stage].activation_bytes + self._later[task.stage]
            if task.kind == _FORWARD and needed > device.room_bytes * (1 + _ROUNDING):
                put_back.append(entry)
            else:
                chosen = task
        for entry in put_back:
            heapq.heappush(device.ready, entry)
        if chosen is None and device.weights:
            chosen = device.weights.pop(0)
        return chosen

    def _do(self, device: _SimulatedDevice, task: Task, now_s: float) -> None:
        """Does a task, and sends what others wait for."""
        kind, stage, batch = task
        of = self._stages[stage]
        seconds = of.forward_s, of.backward_s - of.backward_weight_s, of.backward_weight_s
        end_s = device.free_s = now_s + seconds[_PASSES.index(kind)]
        device.done.append(task)
        self._comes(end_s, Task("", stage, batch))
        if kind == _WEIGHT:
            device.kept_bytes -= of.activation_bytes
        elif kind == _FORWARD:
            device.kept_bytes += of.activation_bytes
            if stage + 1 < len(self._stages):
                self._comes(end_s + of.forward_send_s * self._apart(stage, stage + 1), Task(_FORWARD, stage + 1, batch))
            else:
                self._comes(end_s, Task(_INPUT, stage, batch))
        else:
            device.weights.append(Task(_WEIGHT, stage, batch))
            if stage:
                self._comes(end_s + of.backward_send_s * self._apart(stage, stage - 1), Task(_INPUT, stage - 1, batch))

    def _apart(self, first: int, other: int) -> bool:
        return self._device_of[first] != self._device_of[other]

    def _comes(self, at_s: float, task: Task) -> None:
        """Notes from when on a task can be done; one without a kind only says that its device is free then."""
        heapq.heappush(self._events, (at_s, task.micro_batch, task.stage, task.kind))


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


_CHANGE = np.array([KEPT[kind] for kind in KINDS])


def activation_room(stages: Sequence[StageTimes], device_of: Sequence[int]) -> FloatArray:
    """Returns the bytes that each device has for activations, beside what is resident and temporary; shape (D,)."""
    rooms = []
    for device in range(max(device_of) + 1):
        own = [stage for stage, on in zip(stages, device_of, strict=True) if on == device]
        limit = min(stage.memory_limit_bytes for stage in own)
        rooms.append(limit - sum(s.resident_bytes for s in own) - max(s.temporary_bytes for s in own))
    return np.array(rooms)


def fits(table: TaskTable, kept_bytes: FloatArray, room_bytes: FloatArray) -> bool:
    """Returns whether no device keeps more than it has room for, at any task of an order, where a stage keeps so many
    bytes for a micro-batch, shape (S,), and a device has so many for activations, shape (D,).
    """
    if np.isinf(room_bytes).all():
        return True
    change = _CHANGE[table.kind] * kept_bytes[table.stage]
    ends = np.searchsorted(table.device, np.arange(len(room_bytes)), side="right")
    whole = np.cumsum(change)
    # All that a device keeps is gone when its list ends, so each begins at nothing.
    peaks = np.maximum.reduceat(whole, np.concatenate([[0], ends[:-1]]))
    return bool((peaks <= room_bytes * (1 + 1e-12)).all())
