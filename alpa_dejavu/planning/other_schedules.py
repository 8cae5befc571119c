"""Says what other schedules would be worth on a plan's submeshes, with its layers cut anew into each one's chunks.

Alpa runs four schedules. Others fill bubbles by splitting backward passes, or by giving each submesh several parts
(chunks) of the model. Here each is simulated on the submeshes, meshes and micro-batches of a plan, by the costs that
the plan was made from. Transfers block both stages in Alpa's schedules, as they do there, and overlap computing in the
others, as in the runtimes that have them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.ties import TOLERANCE
from alpa_dejavu.planning._stage_times import stage_times, timeline_of
from alpa_dejavu.problem import StageChoice
from alpa_dejavu.schedules import SCHEDULES, Schedule, named_schedule
from alpa_dejavu.simulation.step import StageTimes, Timeline

if TYPE_CHECKING:
    from alpa_dejavu.planning.result import PlanningResult

__all__ = ["OtherSchedule", "other_schedules"]

_CHUNKS = (2, 3, 4)
"""The numbers of chunks that are tried where a schedule may have any."""
_MOST_TRIES = 400
"""So many cuts are simulated for a schedule at most."""
_MOST_TASKS = 100_000
"""A step of more passes takes too long to be simulated for every cut."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class OtherSchedule:
    """A plan's step by another schedule on the same submeshes.

    Attributes:
        name, chunks: the schedule, and the stages of each submesh.
        step_s: the seconds of its simulated step; None where it can't be had.
        memory_bytes: the largest peak of memory of a device; None likewise.
        fits: whether every device's peak leaves free what the plan's memory margin asks for.
        layers: the first and the last layer of each stage, in order.
        device_of: the index of the plan's stage whose submesh each stage is on.
        runtimes: who can run the schedule, by name.
        why: what stands against it, in a few words; empty if nothing does.
    """

    name: str
    chunks: int
    step_s: float | None = None
    memory_bytes: float | None = None
    fits: bool = False
    layers: tuple[tuple[int, int], ...] = ()
    device_of: tuple[int, ...] = ()
    runtimes: tuple[str, ...] = ()
    why: str = ""


def other_schedules(planned: PlanningResult) -> list[OtherSchedule]:
    """Returns a plan's step by each schedule that trains as its own does: those that fit first, the fastest first of
    them, and last those that can't be had, with the reason.

    Schedules that update the weights after each micro-batch are left out, since they train otherwise. The layers are
    cut so that no chunk takes much longer than others, and then moved one by one as long as that makes the simulated
    step shorter.

    Args:
        planned: the plan with the costs that it was made from; its schedule must train.

    Raises:
        ValueError: the plan only infers.
    """
    if not planned.model.training:
        raise ValueError("the plan's step takes no gradients, so its schedule is 'inference', and no other is one")
    found = []
    for name, kind in SCHEDULES.items():
        if name in ("inference", "pipedream"):
            continue
        for chunks in _CHUNKS if kind.chunks is None else (kind.chunks,):
            found.append(_by(planned, name, chunks))
    return sorted(found, key=lambda one: (one.step_s is None, not one.fits, one.step_s or 0.0))


def _by(planned: PlanningResult, name: str, chunks: int) -> OtherSchedule:
    devices, layers = len(planned.choices), planned.model.num_layers
    bare = OtherSchedule(name, chunks, runtimes=SCHEDULES[name].runtimes)
    if devices * chunks > layers:
        return dataclasses.replace(bare, why=f"{layers} layers are too few for {devices * chunks} stages")
    if devices == 1 and chunks > 1:
        return dataclasses.replace(bare, why="one submesh has no pipeline")
    if 3 * devices * chunks * planned.run.num_micro_batches > _MOST_TASKS:
        return dataclasses.replace(bare, why="it has too many passes to be simulated for every cut")
    try:
        schedule = named_schedule(name, devices * chunks, planned.run.num_micro_batches, chunks)
    except ValueError as error:
        return dataclasses.replace(bare, why=str(error).partition(";")[0])
    cut = _Cut(planned, schedule)
    best = cut.best()
    memory = [float(best.memory_over_time(d)[1].max()) for d in range(devices)]
    room = cut.usable_bytes
    fits = all(held <= free for held, free in zip(cut.needed_bytes(best), room, strict=True))
    return dataclasses.replace(
        bare,
        step_s=best.step_s,
        memory_bytes=max(memory),
        fits=fits,
        layers=tuple((stage.first, stage.last) for stage in cut.stages),
        device_of=schedule.device_of,
        why="" if fits else "it takes more memory than the devices have",
    )


@final
class _Cut:
    """The cut of a plan's layers into the stages of a schedule, on the plan's submeshes."""

    def __init__(self, planned: PlanningResult, schedule: Schedule) -> None:
        self._planned, self._schedule = planned, schedule
        self._on = [planned.choices[device] for device in schedule.device_of]
        numbers = {host.name: n for n, host in enumerate(planned.cluster.hosts)}
        placed = [[numbers[name] for name in stage.hosts] for stage in planned.plan.stages]
        self._hosts = [placed[device] for device in schedule.device_of]
        self._by_weight: dict[tuple[int, int], FloatArray] = {}
        self.stages: tuple[StageChoice, ...] = ()

    @property
    def usable_bytes(self) -> list[float]:
        """The bytes of each submesh's devices that the plan's memory margin leaves for stages."""
        return [float(self._planned.table.usable_bytes[choice.submesh]) for choice in self._planned.choices]

    def best(self) -> Timeline:
        """Returns the step of the best cut that is found; `stages` is that cut."""
        if self._schedule.chunks == 1:
            cut = [stage.first for stage in self._planned.choices] + [self._planned.model.num_layers]
        else:
            cut = self._balanced()
        best = self._simulated(cut)
        others, left = _neighbours(cut), _MOST_TRIES
        while left and (other := next(others, None)) is not None:
            made, left = self._simulated(other), left - 1
            if made.step_s < best.step_s * (1 - TOLERANCE):
                cut, best, others = other, made, _neighbours(other)
        self.stages = self._choices(cut)
        return best

    def needed_bytes(self, made: Timeline) -> list[float]:
        """Returns the bytes of each submesh's devices that a step needs, by the plan's memory margin."""
        table, times = self._planned.table, []
        for choice, stage in zip(self.stages, made.stages, strict=True):
            memory = table.memory[choice.submesh][choice.config]
            assert memory is not None, "every config has its memory"
            needed, where = table.margin.needed(memory), (choice.first, choice.last)
            times.append(
                dataclasses.replace(
                    stage,
                    activation_bytes=float(needed.per_micro_batch[where]),
                    resident_bytes=float(needed.resident[where]),
                    temporary_bytes=float(needed.temporary[where]),
                )
            )
        counted = dataclasses.replace(made, stages=tuple(times))
        return [float(counted.memory_over_time(d)[1].max()) for d in range(self._schedule.num_devices)]

    def _balanced(self) -> list[int]:
        """Where each stage begins, and the end, so that the largest stage is as small as it can be."""
        layers, table = self._planned.model.num_layers, self._planned.table
        seconds = table.compute_s + table.collective_s
        least = np.full((len(self._on) + 1, layers + 1), np.inf)
        least[0, 0] = 0.0
        came = np.zeros_like(least, dtype=np.int64)
        for n, choice in enumerate(self._on):
            own = seconds[:, :, choice.submesh, choice.config]
            for end in range(n + 1, layers + 1):
                sums = np.maximum(least[n, :end], own[:end, end - 1])
                came[n + 1, end] = int(sums.argmin())
                least[n + 1, end] = sums[came[n + 1, end]]
        cut = [layers]
        for n in range(len(self._on), 0, -1):
            cut.append(int(came[n, cut[-1]]))
        return cut[::-1]

    def _simulated(self, cut: Sequence[int]) -> Timeline:
        planned, stages = self._planned, self._choices(cut)
        times = stage_times(planned.table, stages, planned.space, self._hosts)
        if self._schedule.splits:
            pairs = zip(times, stages, strict=True)
            times = tuple(dataclasses.replace(t, backward_weight_s=self._weight_s(t, stage)) for t, stage in pairs)
        return timeline_of(times, planned.cluster, planned.run, self._schedule)

    def _weight_s(self, times: StageTimes, stage: StageChoice) -> float:
        """The seconds of a stage's backward pass that only gradients of weights need; none are known without a model
        of the costs.
        """
        table, key = self._planned.table, (stage.submesh, stage.config)
        config = self._planned.space.configs[stage.submesh][stage.config]
        if table.stage_costs is None or config is None:
            return 0.0
        if key not in self._by_weight:
            self._by_weight[key] = table.stage_costs.by_weight_s(table.devices[stage.submesh], config)
        return min(float(self._by_weight[key][stage.first, stage.last]), times.backward_s)

    def _choices(self, cut: Sequence[int]) -> tuple[StageChoice, ...]:
        pairs = zip(self._on, itertools.pairwise(cut), strict=True)
        return tuple(StageChoice(first, end - 1, on.submesh, on.config) for on, (first, end) in pairs)


def _neighbours(cut: Sequence[int]) -> Iterator[list[int]]:
    """Yields the cuts in which a stage has a layer less and another one a layer more, neighbours first; the stages
    between them move along.
    """
    count = len(cut) - 1
    for apart in range(1, count):
        for first in range(1, count - apart + 1):
            for by in (-1, 1):
                other = [n + by if first <= place < first + apart else n for place, n in enumerate(cut)]
                if all(a < b for a, b in itertools.pairwise(other)):
                    yield other
