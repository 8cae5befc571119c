"""Shares of a batch's micro-batches, and of the layers, for pipelines that compute at unlike speeds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from alpa_dejavu._util.ties import TOLERANCE, least, rounded
from alpa_dejavu.planning.rivals._task import Task
from alpa_dejavu.planning.rivals.stages import Pipeline

__all__ = ["pace_s", "shared", "with_layers_moved"]


def pace_s(task: Task, pipeline: Pipeline) -> float:
    """Returns the seconds that the slowest stage of a pipeline computes for a micro-batch."""
    times = task.stage_times(pipeline.stages, pipeline.micro_batch)
    return max(stage.forward_s + stage.backward_s for stage in times)


def shared(task: Task, pipelines: Sequence[Pipeline], count: int) -> tuple[Pipeline, ...]:
    """Returns pipelines with the shares of so many micro-batches, at least as many as pipelines, for which their
    synchronous step is shortest.

    Shares begin in proportion to the pipelines' speeds. Then a micro-batch at a time goes from one pipeline to another
    as long as the step gets shorter, or stays as long and the slowest pipelines get faster.
    """
    best = _with_counts(pipelines, _in_proportion([1 / pace_s(task, pipeline) for pipeline in pipelines], count))
    best_s = _steps_s(task, best)
    while True:
        tried = [(_steps_s(task, moved), moved) for moved in _moved(task, best)]
        steps_s, better = min(tried, key=lambda pair: pair[0], default=(best_s, best))
        unequal = ((a, b) for a, b in zip(steps_s, best_s, strict=True) if abs(a - b) > TOLERANCE * max(a, b))
        if not next((a < b for a, b in unequal), False):
            return best
        best_s, best = steps_s, better


def _in_proportion(speeds: Sequence[float], count: int) -> list[int]:
    """Returns whole numbers of at least one that sum up to `count`, as near as can be to the proportion of speeds.

    >>> _in_proportion([3.0, 1.0], 8), _in_proportion([9.0, 1.0], 3)
    ([6, 2], [2, 1])
    """
    exact = [speed / sum(speeds) * (count - len(speeds)) for speed in speeds]
    numbers = [1 + int(share) for share in exact]
    behind = sorted(range(len(speeds)), key=lambda n: int(exact[n]) - exact[n])
    for n in behind[: count - sum(numbers)]:
        numbers[n] += 1
    return numbers


def _with_counts(pipelines: Sequence[Pipeline], counts: Sequence[int]) -> tuple[Pipeline, ...]:
    pairs = zip(pipelines, counts, strict=True)
    return tuple(dataclasses.replace(pipeline, num_micro_batches=count) for pipeline, count in pairs)


def _moved(task: Task, pipelines: tuple[Pipeline, ...]) -> Iterator[tuple[Pipeline, ...]]:
    """Yields the same pipelines with a micro-batch moved from one to another; of pipelines that compute equally long
    for as many micro-batches the first one stands for all.
    """
    counts = [pipeline.num_micro_batches for pipeline in pipelines]
    seconds = rounded(np.array(task.computing_s(pipelines))).tolist()
    alike = dict(reversed([(key, n) for n, key in enumerate(zip(counts, seconds, strict=True))]))
    for giver, taker in itertools.permutations(alike.values(), 2):
        if counts[giver] > 1:
            yield _with_counts(pipelines, [count - (n == giver) + (n == taker) for n, count in enumerate(counts)])


def _steps_s(task: Task, pipelines: tuple[Pipeline, ...]) -> tuple[float, ...]:
    """Returns the seconds of the synchronous step, and of what each pipeline computes, the longest first."""
    return task.synchronous_s(pipelines), *sorted(task.computing_s(pipelines), reverse=True)


def with_layers_moved(task: Task, pipelines: tuple[Pipeline, ...]) -> tuple[Pipeline, ...]:
    """Returns pipelines with layers moved from a stage to the next or the one before, one at a time, and then their
    micro-batches shared anew, as long as their synchronous step gets shorter and all stages fit.

    Pipelines that are cut alike stay so.
    """
    count = sum(pipeline.num_micro_batches for pipeline in pipelines)
    best, best_s = pipelines, task.synchronous_s(pipelines)
    while True:
        tried = [shared(task, moved, count) for moved in _moved_layers(best)]
        fitting = [moved for moved in tried if all(map(task.fits, moved))]
        if not fitting:
            return best
        better = least(fitting, key=task.synchronous_s)
        step_s = task.synchronous_s(better)
        if step_s >= best_s * (1 - TOLERANCE):
            return best
        best, best_s = better, step_s


def _moved_layers(pipelines: Sequence[Pipeline]) -> Iterator[list[Pipeline]]:
    """Yields the pipelines with the end of a stage moved by a layer, in all pipelines that are cut alike."""
    for cut in dict.fromkeys(pipeline.cut for pipeline in pipelines):
        for n, ((first, last, _), (_, next_last, _)) in enumerate(itertools.pairwise(cut)):
            for end in (last - 1, last + 1):
                if first <= end < next_last:
                    yield [_with_end(alike, n, end) if alike.cut == cut else alike for alike in pipelines]


def _with_end(pipeline: Pipeline, n: int, end: int) -> Pipeline:
    before, after = pipeline.stages[n : n + 2]
    moved = dataclasses.replace(before, last=end), dataclasses.replace(after, first=end + 1)
    return dataclasses.replace(pipeline, stages=(*pipeline.stages[:n], *moved, *pipeline.stages[n + 2 :]))
