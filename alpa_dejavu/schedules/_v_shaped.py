"""Schedules with two chunks on each device, the model folded like a V: the last stage is where the first one is.

Most repeat a building block, the tasks of one micro-batch at fixed distances, every six ticks: two forwards, two
backwards by inputs and two by weights. How steeply the block goes down the devices and up again says how long
activations stay, and so what is kept. DualPipe-V does forwards of a micro-batch beside backwards of another.

References:
    Qi et al., Pipeline Parallelism with Controllable Memory, NeurIPS 2024 (V-Min, V-Half, V-ZB).
    Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024 (ZB-V).
    DeepSeek-AI, DeepSeek-V3 Technical Report, 2024 (DualPipe). Qi, DualPipe could be better without the Dual, 2025.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import TypeAlias, final

from alpa_dejavu.schedules._schedule import Schedule
from alpa_dejavu.schedules._task import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, KEPT, KINDS, Task

__all__ = ["check_dualpipe_v", "dualpipe_v", "v_half", "v_min", "zb_v"]

_TICKS = 6
"""What a micro-batch takes of each device: three passes of two chunks."""
_STEEP, _MIDDLE, _FLAT = (4, 2, 4, 2), (2, 1, 2, 1), (1, 1, 1, 1)
"""Ticks from device to device, of a forward down and up and of a backward down and up."""


def zb_v(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns ZB-V: no bubbles from 2 p micro-batches on where passes are equally long, in the memory of 1F1B's first
    device.
    """
    return _v_shaped("zb_v", num_devices, num_micro_batches, 2 * num_devices, [_STEEP], eager=True)


def v_half(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns V-Half: about half of 1F1B's activations and of its bubble where all passes are equally long."""
    return _v_shaped("v_half", num_devices, num_micro_batches, 2 * ((num_devices + 2) // 2), [_MIDDLE])


def v_min(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns V-Min: about a third of 1F1B's activations, two thirds of its bubble where passes are equally long."""
    # Where three divides the devices, the flat block meets itself and must wait; the middle one may then be as good.
    return _v_shaped("v_min", num_devices, num_micro_batches, 2 * ((num_devices + 4) // 3), [_FLAT, _MIDDLE])


def _v_shaped(
    name: str,
    num_devices: int,
    num_micro_batches: int,
    limit: int,
    blocks: Iterable[tuple[int, ...]],
    eager: bool = False,
) -> Schedule:
    """The shortest of the schedules that repeat one of some blocks within `limit` activations, each of a chunk."""
    squeezed = _Squeezed(num_devices, num_micro_batches, limit, eager)
    runs = [squeezed.run(_block(num_devices, block)) for block in blocks]
    best = min((run for run in runs if run is not None), key=lambda run: run[1])
    return Schedule(name, tuple(tuple(row) for row in best[0]))


def _block(num_devices: int, ticks: tuple[int, ...]) -> list[list[int]]:
    """Returns at which tick each device has each of four passes of the first micro-batch, in order, for each pass.

    The block turns at the last device, at the first, and at the last again; it waits there for as few ticks as it needs
    so that no device has two passes of any micro-batches at once.
    """
    best: tuple[int, list[list[int]]] | None = None
    for waits in itertools.product(range(_TICKS), repeat=3):
        passes: list[list[int]] = []
        at = 0
        for n, pace in enumerate(ticks):
            path = [at + pace * device for device in range(num_devices)]
            passes.append(path if n % 2 == 0 else path[::-1])
            at = path[-1] + 1 + (waits[n] if n < len(waits) else 0)
        apart = all(len({path[device] % _TICKS for path in passes}) == len(passes) for device in range(num_devices))
        if apart and (best is None or sum(waits) < best[0]):
            best = sum(waits), passes
    assert best is not None, "four passes always find four of six ticks"
    return best[1]


_Done: TypeAlias = dict[str, list[list[int]]]
"""After which tick each kind of pass of each stage and micro-batch is done."""
_NEVER = 2**62


@final
@dataclasses.dataclass
class _Squeezed:
    """A run of a repeated block by ticks, in which each device does its passes as early as it can.

    A device does its passes in the block's order, and backwards by weights where the next pass can't begin yet, or
    would keep more than `limit` activations. Before its first backward an `eager` one takes later forwards ahead.
    """

    num_devices: int
    num_micro_batches: int
    limit: int
    eager: bool

    def run(self, block: list[list[int]]) -> tuple[list[list[Task]], int] | None:
        """Returns each device's tasks, and the ticks that they take; None if the block needs more activations."""
        last = 2 * self.num_devices - 1
        waiting = []
        for device in range(self.num_devices):
            stages = (device, last - device, last - device, device)
            kinds = (FORWARD, FORWARD, BACKWARD_INPUT, BACKWARD_INPUT)
            passes = [
                (path[device] + _TICKS * batch, Task(kind, stage, batch))
                for path, kind, stage in zip(block, kinds, stages, strict=True)
                for batch in range(self.num_micro_batches)
            ]
            waiting.append([task for _, task in sorted(passes)])
        rows: list[list[Task]] = [[] for _ in waiting]
        weights: list[list[Task]] = [[] for _ in waiting]
        done = {kind: [[_NEVER] * self.num_micro_batches for _ in range(last + 1)] for kind in KINDS}
        kept, tick, left = [0] * len(waiting), 0, 3 * 2 * self.num_devices * self.num_micro_batches
        while left:
            before = left
            for device, queue in enumerate(waiting):
                task = self._next(queue, weights[device], kept[device], done, tick)
                if task is None:
                    continue
                (weights[device] if task.kind == BACKWARD_WEIGHT else queue).remove(task)
                if task.kind == BACKWARD_INPUT:
                    weights[device].append(task._replace(kind=BACKWARD_WEIGHT))
                kept[device] += KEPT[task.kind]
                rows[device].append(task)
                done[task.kind][task.stage][task.micro_batch] = tick + 1
                left -= 1
            if left == before:
                return None
            tick += 1
        return rows, tick

    def _next(self, queue: list[Task], weights: list[Task], kept: int, done: _Done, tick: int) -> Task | None:
        """Returns what a device does at a tick; None: it waits."""
        if queue and self._can(queue[0], kept, done, tick):
            return queue[0]
        if weights:
            return weights[0]
        if self.eager and queue and queue[0].kind == FORWARD:
            # It has done no backward yet. A place stays free for the pass that it waits for. Of each of its two stages
            # only the next forward may be ready.
            for stage in {task.stage: None for task in queue[: 2 * self.num_devices + 2]}:
                task = next((t for t in queue if t.stage == stage and t.kind == FORWARD), None)
                if task is not None and self._can(task, kept + 1, done, tick):
                    return task
        return None

    def _can(self, task: Task, kept: int, done: _Done, tick: int) -> bool:
        """Returns whether what a task needs is there, and its activations have room."""
        kind, stage, batch = task
        if kind == FORWARD:
            return kept < self.limit and (stage == 0 or done[FORWARD][stage - 1][batch] <= tick)
        behind = done[FORWARD][stage] if stage == 2 * self.num_devices - 1 else done[BACKWARD_INPUT][stage + 1]
        return behind[batch] <= tick


def dualpipe_v(num_devices: int, num_micro_batches: int) -> Schedule:
    """Returns DualPipe-V: stage s of 2 p is on device s, or on 2 p - 1 - s, as in a V.

    Raises:
        ValueError: there are fewer micro-batches than stages.
    """
    check_dualpipe_v(num_devices, num_micro_batches)
    rows = (_row(device, num_devices, num_micro_batches) for device in range(num_devices))
    return Schedule("dualpipe_v", tuple(map(tuple, rows)))


def _row(device: int, num_devices: int, size: int) -> Iterator[Task]:
    """A device's tasks: filling, a steady part of a forward and a backward of either chunk in turns, draining.
    Backwards are split where nothing else could fill a bubble; their parts by weights wait in a queue.
    """
    stages = (device, 2 * num_devices - 1 - device)
    behind = num_devices - 1 - device
    counts: dict[tuple[str, int], int] = {}
    weights: list[Task] = []

    def number(kind: str, chunk: int) -> int:
        count = counts.get((kind, chunk), 0)
        counts[kind, chunk] = count + 1
        return count

    def forward(chunk: int) -> Task:
        return Task(FORWARD, stages[chunk], number(FORWARD, chunk))

    def backward(chunk: int, split: bool = False) -> Task:
        batch = number(BACKWARD, chunk)
        if split:
            weights.append(Task(BACKWARD_WEIGHT, stages[chunk], batch))
        return Task(BACKWARD_INPUT if split else BACKWARD, stages[chunk], batch)

    for _ in range(2 * behind):
        yield forward(0)
    for _ in range(device + 1):
        yield forward(0)
        yield forward(1)
    for _ in range(behind):
        yield backward(1, split=True)
        yield weights.pop(0)
        yield forward(1)
    for _ in range(size - 2 * num_devices + device + 1):
        yield forward(0)
        yield backward(1)
        yield forward(1)
        yield backward(0)
    for _ in range(behind):
        yield backward(1)
        yield forward(1)
        yield backward(0)
    # The second half of these 2 (device + 1) backwards is split.
    for n in range(device + 1):
        yield backward(1, split=2 * n >= device + 1)
        yield backward(0, split=2 * n + 1 >= device + 1)
    for _ in range(behind):
        yield weights.pop(0)
        yield backward(0, split=True)
    while weights:
        yield weights.pop(0)


def check_dualpipe_v(num_devices: int, num_micro_batches: int) -> None:
    """Raises ValueError unless the schedule can have so many micro-batches on so many devices."""
    if num_micro_batches < 2 * num_devices:
        raise ValueError(
            f"num_micro_batches is {num_micro_batches}, but must be at least {2 * num_devices} in dualpipe_v on "
            f"{num_devices} devices; take more micro-batches, or zb_v"
        )
