"""Layers moved between the stages of data-parallel pipelines."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from alpa_dejavu._util.ties import TOLERANCE, least
from alpa_dejavu.planning.strategies._shares import shared
from alpa_dejavu.planning.strategies._task import Task
from alpa_dejavu.planning.strategies.stages import Pipeline

__all__ = ["with_layers_moved"]


def with_layers_moved(task: Task, pipelines: tuple[Pipeline, ...]) -> tuple[Pipeline, ...]:
    """Returns pipelines with layers moved from a stage to the next or the one before, one at a time, and then their
    micro-batches shared anew, as long as their synchronous step gets shorter and all stages fit.

    Pipelines that are cut alike stay so.
    """
    count = sum(one.num_micro_batches for one in pipelines)
    best, best_s = pipelines, task.synchronous_s(pipelines)
    while True:
        tried = [shared(task, moved, count) for moved in _moved(best)]
        fitting = [moved for moved in tried if all(map(task.fits, moved))]
        if not fitting:
            return best
        better = least(fitting, key=task.synchronous_s)
        step_s = task.synchronous_s(better)
        if step_s >= best_s * (1 - TOLERANCE):
            return best
        best, best_s = better, step_s


def _moved(pipelines: Sequence[Pipeline]) -> Iterator[list[Pipeline]]:
    """Yields the pipelines with the end of a stage moved by a layer, in all pipelines that are cut alike."""
    for cut in dict.fromkeys(one.cut for one in pipelines):
        for n, ((first, last, _), (_, next_last, _)) in enumerate(itertools.pairwise(cut)):
            for end in (last - 1, last + 1):
                if first <= end < next_last:
                    yield [_with_end(one, n, end) if one.cut == cut else one for one in pipelines]


def _with_end(pipeline: Pipeline, n: int, end: int) -> Pipeline:
    stages = list(pipeline.stages)
    stages[n] = dataclasses.replace(stages[n], last=end)
    stages[n + 1] = dataclasses.replace(stages[n + 1], first=end + 1)
    return dataclasses.replace(pipeline, stages=tuple(stages))
