"""Chakra's execution traces of a plan's step, for ASTRA-sim and other simulators: one for each rank.

All ranks of a submesh do the same, so that their nodes differ only in whom they send to, and in which group. Each task
of the simulated step becomes a row of nodes that wait for each other; what the task waits for, its first node does.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.clusters.host_classes import hosts_by_names
from alpa_dejavu.costs.interstage import CutBytes
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.exports import _chakra_schema as schema
from alpa_dejavu.exports.stage_work import StageWork, WorkPart, stage_works
from alpa_dejavu.problem import MeshConfig, Plan
from alpa_dejavu.schedules import Schedule
from alpa_dejavu.simulation import StageTimes
from alpa_dejavu.simulation.plan_times import plan_times
from alpa_dejavu.simulation.step import schedule_of, step_program

_US_PER_S = 1e6
_WAYS = {"forward send": 1, "backward send": -1}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Ranks:
    """The ranks of a plan's devices, host by host; devices of a logical mesh are neighbours along its last axis."""

    of_submesh: tuple[tuple[int, ...], ...]  # of each submesh, in the order of its logical mesh
    _groups: dict[tuple[int, ...], int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> _Ranks:
        """Returns the ranks of a plan's devices; where a host has several submeshes, they take its devices in order."""
        hosts = [host.name for host in (plan.hardware or hosts_by_names(plan)).hosts]
        used = plan.devices_of_hosts
        order = dict.fromkeys([*(name for name in hosts if name in used), *used])
        ends = itertools.accumulate((used[name] for name in order), initial=0)
        next_rank = dict(zip(order, ends, strict=False))
        submeshes = []
        for stage in plan.on_submeshes:
            ranks: list[int] = []
            for name in stage.hosts:
                begin = next_rank[name]
                next_rank[name] += stage.submesh.devices_per_host
                ranks += range(begin, next_rank[name])
            submeshes.append(tuple(ranks))
        return cls(tuple(submeshes))

    def groups(self, submesh: int, config: MeshConfig, axis: int) -> tuple[int, ...]:
        """Returns for each device of a submesh the number of its group of an axis, as `MeshConfig.groups` has them."""
        ranks, number = self.of_submesh[submesh], dict[int, int]()
        for group in config.groups(axis):
            # ASTRA-sim takes 0 for the group of all ranks.
            its_number = self._groups.setdefault(tuple(ranks[n] for n in group), len(self._groups) + 1)
            number |= dict.fromkeys(group, its_number)
        return tuple(number[n] for n in range(len(ranks)))

    @property
    def numbered_groups(self) -> dict[str, list[int]]:
        """Returns the ranks of all groups that were asked for, by the group's number as text."""
        return {str(number): list(group) for group, number in self._groups.items()}


class _Lane:
    """The traces of the ranks of one submesh, whose nodes are numbered alike."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks, self.clock = ranks, _Micros()
        self.records: list[list[bytes]] = [[schema.metadata()] for _ in ranks]

    def add(self, name: str, kind: int, waits_for: Sequence[int], micros: int, attributes: Sequence[bytes]) -> int:
        """Adds a node to each rank's trace, with the attributes of each; returns its number."""
        number = len(self.records[0])
        head = schema.node(number, name, kind, waits_for, micros)
        nodes = {own: schema.delimited(head + own) for own in dict.fromkeys(attributes)}
        for records, own in zip(self.records, attributes, strict=True):
            records.append(nodes[own])
        return number


class _Micros:
    """Whole microseconds whose sum is never further from the exact one than half of one."""

    def __init__(self) -> None:
        self._exact, self._given = 0.0, 0

    def of(self, seconds: float) -> int:
        self._exact += seconds * _US_PER_S
        micros = max(round(self._exact) - self._given, 0)
        self._given += micros
        return micros


@final
@dataclasses.dataclass(eq=False)
class _TraceBuilder:
    plan: Plan
    schedule: Schedule
    times: Sequence[StageTimes]
    works: Sequence[StageWork]
    cuts: CutBytes
    ranks: _Ranks

    def __post_init__(self) -> None:
        self._lanes = [_Lane(ranks) for ranks in self.ranks.of_submesh]
        self._last: dict[tuple[int, int], tuple[int, ...]] = {}  # by task and submesh, the nodes that it ends with
        self._links: dict[tuple[int, int], _Micros] = {}
        self._kinds: list[tuple[str, int, int]] = []
        self._tags = 0

    def add(self, number: int, kind: str, stage: int, batch: int, waits: Sequence[int]) -> None:
        """Adds the nodes of a task."""
        self._kinds.append((kind, stage, batch))
        if kind in _WAYS:
            seconds = self.times[stage].forward_send_s if kind == "forward send" else self.times[stage].backward_send_s
            self._send(number, kind, stage, batch, waits, seconds)
            return
        submesh = self.schedule.device_of[stage]
        lane, before = self._lanes[submesh], list[int]()
        for task in waits:
            if (task, submesh) not in self._last:
                self._arrive(task)
            before += self._last[task, submesh]
        after = tuple(dict.fromkeys(before))
        for part in self._parts(kind, stage, batch):
            name = f"{part.name}, micro-batch {batch}" if kind != "update" else part.name
            after = (self._part(lane, submesh, stage, name, part, after),)
        self._last[number, submesh] = after

    def finished(self) -> dict[int, bytes]:
        """Returns the traces by rank."""
        records = (pair for lane in self._lanes for pair in zip(lane.ranks, lane.records, strict=True))
        return {rank: b"".join(own) for rank, own in sorted(records)}

    def _parts(self, kind: str, stage: int, batch: int) -> Sequence[WorkPart]:
        work, schedule = self.works[stage].parts, self.schedule
        gives = kind in ("backward", "backward by weight")
        synchronises = gives and (schedule.updates_each or batch == schedule.last_gradients[stage])
        return (*work.get(kind, ()), *(work["synchronise"] if synchronises else ()))

    def _part(self, lane: _Lane, submesh: int, stage: int, name: str, part: WorkPart, after: Sequence[int]) -> int:
        micros, config = lane.clock.of(part.seconds), self.works[stage].config
        if not part.collective:
            return lane.add(name, schema.COMPUTE, after, micros, [schema.attributes(is_cpu_op=False)] * len(lane.ranks))
        own = [
            schema.attributes(
                is_cpu_op=False,
                comm_type=schema.COLLECTIVES[part.collective],
                comm_size=max(1, round(part.num_bytes)),
                pg_name=str(group),
            )
            for group in self.ranks.groups(submesh, config, part.axis)
        ]
        return lane.add(name, schema.COLLECTIVE, after, micros, own)

    def _arrive(self, task: int) -> None:
        """Adds the transfer of a task's result where that takes no time, and so isn't a task of its own."""
        kind, stage, batch = self._kinds[task]
        self._send(task, "forward send" if kind == "forward" else "backward send", stage, batch, [task], 0.0)

    def _send(self, number: int, kind: str, stage: int, batch: int, waits: Sequence[int], seconds: float) -> None:
        """Adds sends and receives from a stage to its neighbour: each pair of devices has its share of the bytes."""
        target = stage + _WAYS[kind]
        submeshes = self.schedule.device_of[stage], self.schedule.device_of[target]
        first = self.plan.stages[max(stage, target)].layers[0]
        whole = (self.cuts.forward_bytes if target > stage else self.cuts.backward_bytes)[first]
        lanes = [self._lanes[submesh] for submesh in submeshes]
        pairs = math.lcm(*(len(lane.ranks) for lane in lanes))
        size = max(1, round(whole / pairs))
        micros = self._links.setdefault((stage, target), _Micros()).of(seconds)
        tag, self._tags = self._tags, self._tags + 1
        turns = [pairs // len(lane.ranks) for lane in lanes]
        ends = [[lane.ranks[n // count] for n in range(pairs)] for lane, count in zip(lanes, turns, strict=True)]
        for side, (lane, submesh, count) in enumerate(zip(lanes, submeshes, turns, strict=True)):
            before = [node for wait in waits for node in self._last.get((wait, submesh), ())]
            name = f"{kind} from stage {stage} to stage {target}, micro-batch {batch}"
            nodes = []
            for turn in range(count):
                own = [
                    schema.attributes(
                        is_cpu_op=False, comm_src=ends[0][n], comm_dst=ends[1][n], comm_tag=tag, comm_size=size
                    )
                    for n in range(turn, pairs, count)
                ]
                nodes.append(lane.add(name, (schema.SEND, schema.RECEIVE)[side], before, micros, own))
            self._last.setdefault((number, submesh), tuple(nodes))


def chakra_files(plan: Plan, costs: StageCostModel) -> dict[str, str | bytes]:
    """Returns the execution traces of a step by their files' names; ValueError for costs of another model."""
    times, ranks = plan_times(plan), _Ranks.of(plan)
    schedule = schedule_of(times, plan.num_micro_batches, plan.schedule)
    works = stage_works(plan, times, costs)
    builder = _TraceBuilder(plan, schedule, times, works, costs.interstage.bytes, ranks)
    program = step_program(times, plan.num_micro_batches, schedule)
    columns = program.names, program.stage.tolist(), program.micro_batch.tolist(), program.waits.T.tolist()
    for number, (kind, stage, batch, waits) in enumerate(zip(*columns, strict=True)):
        builder.add(number, kind, stage, batch, [task for task in waits if task >= 0])
    files: dict[str, str | bytes] = {f"step.{rank}.et": trace for rank, trace in builder.finished().items()}
    return {**files, "groups.json": json.dumps(ranks.numbered_groups, indent=1) + "\n"}
