"""HetPipe's waves: pipelines that are never emptied, and share parameters after so many micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from alpa_dejavu.costs.communication import Group
from alpa_dejavu.planning.rivals._exchange import exchanges
from alpa_dejavu.planning.rivals._task import Task
from alpa_dejavu.planning.rivals.stages import Pipeline, sent_at_a_time
from alpa_dejavu.planning.search._stage_times import timeline_of
from alpa_dejavu.problem import Run

__all__ = ["sharing_s", "steady_s"]


def steady_s(task: Task, pipelines: Sequence[Pipeline], staleness: int) -> float:
    """Returns the seconds of a step of several data-parallel pipelines that are never emptied, and share parameters by
    waves.

    A wave is as many micro-batches as a pipeline has stages. No pipeline can be more than `staleness` waves ahead of
    another, so in the long run the slowest sets the pace. After each wave the devices that hold a layer add up its
    gradients: with staleness 0 they wait for that, else it overlaps with computing. Pipelines that send from one host
    to the same other one share the link, as if they always sent at the same time.
    """
    paces, waves, at_a_time = [], 1, sent_at_a_time(pipelines)
    for pipeline in pipelines:
        times, count = task.stage_times(pipeline.stages, pipeline.micro_batch, at_a_time), pipeline.num_micro_batches
        own = math.ceil(count / len(times))
        once, twice = (timeline_of(times, task.cluster, Run(number)).step_s for number in (count, 2 * count))
        paces.append(twice - once + own * max(stage.per_step_s for stage in times))
        waves = max(waves, own)
    shared = waves * sharing_s(task, pipelines)
    return max(paces) + shared if staleness == 0 else max(*paces, shared)


def sharing_s(task: Task, pipelines: Sequence[Pipeline]) -> float:
    """Returns the seconds in which virtual workers, whose stages are single devices, sum up their gradients once: those
    of the slowest stage, as all stages do so at the same time.
    """
    bytes_of = task.stage_costs(pipelines[0].micro_batch).gradient_bytes
    at_a_time = max(len(pipeline.stages) for pipeline in pipelines)
    totals: dict[tuple[int, int], float] = {}
    for one in exchanges(pipelines):
        group = Group(task.cluster, tuple(hosts[0] for hosts in one.replicas(pipelines)), at_a_time)
        took = float(task.models.communication.seconds("all_reduce", bytes_of[one.first, one.last], group))
        for holder in enumerate(one.holders):
            totals[holder] = totals.get(holder, 0.0) + took
    return max(totals.values())
