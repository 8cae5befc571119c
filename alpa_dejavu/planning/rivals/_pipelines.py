"""The strategy of synchronous data-parallel pipelines, whose hosts, cuts and shares of micro-batches may be unlike."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.ties import TOLERANCE, least, ordered, rounded
from alpa_dejavu.planning.rivals._base import Strategy, StrategyChoice
from alpa_dejavu.planning.rivals._orders import Counts, Grouping, groupings, hosts_of
from alpa_dejavu.planning.rivals._searched import Dejavu, counts_of, searched
from alpa_dejavu.planning.rivals._task import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline, as_one, cut_alike
from alpa_dejavu.planning.search.given_stages import part_of
from alpa_dejavu.planning.task import SpaceRules
from alpa_dejavu.problem import Cluster, NoPlanError, checks

_NOTE = (
    "these {} pipelines train data-parallel to each other, and sum up their gradients in each step; Alpa's runtime has "
    "one pipeline only, so it can't run them, and this is an estimate alone; the best single pipeline takes {} a step"
)


@final
@dataclasses.dataclass(frozen=True)
class DataParallelPipelines(Strategy):
    """A strategy that plans several pipelines of the whole model, each on hosts of its own, with a cut and a share of
    the micro-batches of its own; at the end of a step they sum up their gradients.

    It tries ways to group the hosts. For each group the layers are cut by alpha-dejavu's own search without ZeRO. All
    pipelines have micro-batches of one size, as many as make the step shortest; sizes are tried from a single
    pipeline's best one on, both ways. Then layers are moved from stage to stage as long as the step gets shorter. If no
    grouping is faster than the best single pipeline, which may have ZeRO, it is that.

    References:
        Park et al., HetPipe, ATC 2020, whose virtual workers these are, but synchronous. Strati et al., Sailor:
        Automating Distributed Training over Dynamic, Heterogeneous, and Geo-distributed Clusters, SOSP 2025.
    """

    remat: tuple[str, ...] = ("none", "layer")  # the choices of rematerialisation that stages have
    zero: tuple[int, ...] = (0, 2, 3)  # the ZeRO levels that the stages of a single pipeline may have
    groupings: int = 256  # how many ways to group the hosts are tried at most for a size of micro-batch

    def __post_init__(self) -> None:
        checks.positive("pipelines", "groupings", self.groupings)

    @property
    def name(self) -> str:
        return "pipelines"

    def _choose(self, task: StrategyTask) -> StrategyChoice:
        alone = Dejavu(self.remat, self.zero)._choose(task)
        alone_s, tried = task.synchronous_s(alone.pipelines), alone.tried
        best = _Grouped(alone.pipelines, alone_s)
        ways = groupings(task.cluster, self.groupings)
        fewer = [way[:n] + way[n + 1 :] for way in ways if len(way) > 2 for n in range(len(way))]
        ways = list(dict.fromkeys((*ways, *fewer)))
        begin = alone.pipelines[0].micro_batch
        sizes = sorted({begin, *(task.batch // count for count in counts_of(task, task.cluster))})
        place = sizes.index(begin)
        for onwards in (sizes[place::-1], sizes[place + 1 :]):
            before_s = math.inf
            for size in onwards:
                grouped = _of_size(task, ways, self.remat, size, best.step_s)
                tried += grouped.tried
                if grouped.pipelines and grouped.step_s < best.step_s * (1 - TOLERANCE):
                    best = grouped
                if math.isfinite(before_s) and grouped.step_s >= before_s * (1 - TOLERANCE):
                    break
                before_s = grouped.step_s
        pipelines = best.pipelines
        if len(pipelines) > 1:
            pipelines = _as_one(task, with_layers_moved(task, pipelines))
        notes = (_NOTE.format(len(pipelines), units.seconds(alone_s)),) if len(pipelines) > 1 else ()
        return StrategyChoice(pipelines, task.synchronous_s(pipelines), tried, None, notes)


@final
@dataclasses.dataclass(frozen=True)
class _Grouped:
    """The best pipelines of a size of micro-batch; none, with the least step possible, if that isn't short enough."""

    pipelines: tuple[Pipeline, ...]
    step_s: float
    tried: int = 0


def _of_size(
    task: StrategyTask, ways: Sequence[Grouping], remat: tuple[str, ...], size: int, under_s: float
) -> _Grouped:
    """Returns the best pipelines with micro-batches of so many samples, if their step is shorter than `under_s`, by
    ways in the order of what they would take if all always computed on their slowest stages.
    """
    count = task.batch // size
    ways = [way for way in ways if len(way) <= count]
    parts = dict.fromkeys(itertools.chain.from_iterable(ways))
    cuts = {part: cut for part in parts if (cut := _cut(task, part, remat, size)) is not None}
    paces = {part: pace_s(task, cut) for part, cut in cuts.items()}
    bounds = [(count / sum(1 / paces[part] for part in way), way) for way in ways if paces.keys() >= set(way)]
    best, tried = _Grouped((), min((bound_s for bound_s, _ in bounds), default=math.inf)), 0
    for bound_s, way in ordered(bounds, key=lambda bound: bound[0]):
        if bound_s >= under_s:
            break
        tried += 1
        on = zip(way, hosts_of(task.cluster, way), strict=True)
        pipelines = shared(task, [_moved_to(task, cuts[part], part, hosts) for part, hosts in on], count)
        step_s = task.synchronous_s(pipelines)
        if step_s < under_s * (1 - TOLERANCE) and all(map(task.fits, pipelines)):
            best, under_s = _Grouped(pipelines, step_s), step_s
    return dataclasses.replace(best, tried=tried)


def _cut(task: StrategyTask, part: Counts, remat: tuple[str, ...], size: int) -> Pipeline | None:
    """Returns the best pipeline on the first hosts of each kind, for its share of micro-batches; None if none fits."""
    (hosts,) = hosts_of(task.cluster, (part,))
    group = part_of(task.cluster, hosts)
    share = max(1, round(task.batch // size * _rate(group) / _rate(task.cluster)))
    asked = dataclasses.replace(task, batch=size * share, micro_batches=share)
    try:
        return searched(asked, group, SpaceRules(remat=remat, zero=(0,)), hosts="all")[0][1]
    except NoPlanError:
        return None


def _rate(cluster: Cluster) -> float:
    return sum(host.num_devices * host.device.rate("float32") for host in cluster.hosts)


def _moved_to(task: StrategyTask, cut: Pipeline, part: Counts, hosts: Sequence[int]) -> Pipeline:
    """Returns a pipeline on the first hosts of each kind on others instead."""
    (first,) = hosts_of(task.cluster, (part,))
    other = dict(zip(first, hosts, strict=True))
    stages = [dataclasses.replace(stage, hosts=tuple(other[host] for host in stage.hosts)) for stage in cut.stages]
    return dataclasses.replace(cut, stages=tuple(stages))


def _as_one(task: StrategyTask, pipelines: tuple[Pipeline, ...]) -> tuple[Pipeline, ...]:
    """Returns alike pipelines as one with data-parallel stages, which Alpa can run, if that fits and is as fast."""
    if not cut_alike(pipelines):
        return pipelines
    whole = as_one(pipelines)
    slower = task.step_s(whole) > task.synchronous_s(pipelines) * (1 + TOLERANCE)
    return pipelines if slower or not task.fits(whole) else (whole,)


def pace_s(task: StrategyTask, pipeline: Pipeline) -> float:
    """Returns the seconds that the slowest stage of a pipeline computes for a micro-batch."""
    times = task.stage_times(pipeline.stages, pipeline.micro_batch)
    return max(stage.forward_s + stage.backward_s for stage in times)


def shared(task: StrategyTask, pipelines: Sequence[Pipeline], count: int) -> tuple[Pipeline, ...]:
    """Returns pipelines with the shares of so many micro-batches, one each at least, for which their step is shortest.

    Shares begin in proportion to speeds. Then a micro-batch at a time goes from one pipeline to another as long as the
    step gets shorter, or stays as long and the slowest pipelines get faster.
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


def _moved(task: StrategyTask, pipelines: tuple[Pipeline, ...]) -> Iterator[tuple[Pipeline, ...]]:
    """Yields the pipelines with a micro-batch moved to another; the first stands for all that take as long."""
    counts = [pipeline.num_micro_batches for pipeline in pipelines]
    seconds = rounded(np.array(task.computing_s(pipelines))).tolist()
    alike = dict(reversed([(key, n) for n, key in enumerate(zip(counts, seconds, strict=True))]))
    for giver, taker in itertools.permutations(alike.values(), 2):
        if counts[giver] > 1:
            yield _with_counts(pipelines, [count - (n == giver) + (n == taker) for n, count in enumerate(counts)])


def _steps_s(task: StrategyTask, pipelines: tuple[Pipeline, ...]) -> tuple[float, ...]:
    """Returns the seconds of the synchronous step, and of what each pipeline computes, the longest first."""
    return task.synchronous_s(pipelines), *sorted(task.computing_s(pipelines), reverse=True)


def with_layers_moved(task: StrategyTask, pipelines: tuple[Pipeline, ...]) -> tuple[Pipeline, ...]:
    """Returns pipelines with layers moved to neighbouring stages one at a time, and micro-batches shared anew, as long
    as their step gets shorter and all fit. Those that are cut alike stay so.
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
