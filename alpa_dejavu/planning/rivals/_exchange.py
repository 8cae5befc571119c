"""The sums of gradients between data-parallel pipelines: which layers go together, and when all stages are done."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.rivals.stages import Pipeline
from alpa_dejavu.simulation.step import Timeline


@final
@dataclasses.dataclass(frozen=True)
class GradientExchange:
    """A range of layers whose gradients are summed as one, since each pipeline has all of them in one stage."""

    layers: tuple[int, int]  # the first and the last layer, inclusive
    holders: tuple[int, ...]  # for each pipeline the index of the stage that holds the layers
    replicas: tuple[tuple[int, ...], ...]  # the hosts of the devices of each replica of the layers, in all pipelines

    def abreast(self, sums: Sequence[GradientExchange]) -> int:
        """Returns how many groups of other stages' devices may sum up at the same time over the same links."""
        apart = (other for other in sums if all(a != b for a, b in zip(self.holders, other.holders, strict=True)))
        return sum(min(map(len, other.replicas)) for other in apart if not self._links.isdisjoint(other._links))

    @property
    def _links(self) -> set[tuple[int, int]]:
        """Returns the pairs of hosts that are neighbours on the ring."""
        hosts = [replica[0] for replica in self.replicas]
        ring = zip(hosts, [*hosts[1:], hosts[0]], strict=True)
        return {(min(pair), max(pair)) for pair in ring if pair[0] != pair[1]}


def exchanges(pipelines: Sequence[Pipeline]) -> list[GradientExchange]:
    """Returns the ranges of layers whose gradients pipelines sum up as one, the last layers first.

    A range ends wherever a stage of some pipeline ends.

    >>> from alpa_dejavu.planning.rivals.stages import PlacedStage, config_of
    >>> alone = config_of(1, 1)
    >>> whole = Pipeline((PlacedStage(0, 3, (0,), alone),), 1, 1)
    >>> halves = Pipeline((PlacedStage(0, 2, (1,), alone), PlacedStage(3, 3, (1,), alone)), 1, 1)
    >>> [(sum.layers, sum.holders) for sum in exchanges([whole, halves])]
    [((3, 3), (0, 1)), ((0, 2), (0, 0))]
    """
    ends = sorted({stage.last for pipeline in pipelines for stage in pipeline.stages})
    sums = []
    for first, last in zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True):
        holders = tuple(sum(stage.last < first for stage in pipeline.stages) for pipeline in pipelines)
        stages = (pipeline.stages[holder] for pipeline, holder in zip(pipelines, holders, strict=True))
        sums.append(
            GradientExchange((first, last), holders, tuple(replica for stage in stages for replica in stage.replicas))
        )
    return sums[::-1]


@final
@dataclasses.dataclass(frozen=True)
class Computed:
    """The computation of a pipeline's step before gradients are summed with other pipelines, for each of S stages."""

    free_s: FloatArray  # when the stage is done with all but its last backward pass, shape (S,)
    arriving_s: FloatArray  # of the transfer from the next stage that this pass waits for, shape (S,); 0 without one
    last_s: FloatArray  # the seconds of that pass, shape (S,)
    update_s: FloatArray  # the seconds of the update, shape (S,)
    computing_s: float  # when all micro-batches are computed, if nothing is summed

    @classmethod
    def of(cls, timeline: Timeline, update_s: Sequence[float]) -> Computed:
        """Returns what a simulated 1F1B step computes, in which nothing is done once a step."""
        ahead, back = timeline.forward_send_s[:, :, 1], timeline.backward_send_s[:, :, 1]
        none = np.full((1, timeline.num_micro_batches), np.nan)
        arrived, returned = np.concatenate([none, ahead[:-1]]), np.concatenate([back[1:], none])[:, :-1]
        backward = timeline.backward_s[:, :-1, 1]
        before = [timeline.forward_s[:, :, 1], backward, ahead, arrived, back[:, :-1], returned]
        return cls(
            np.nanmax(np.concatenate(before, axis=1), axis=1),
            np.array([*(stage.backward_send_s for stage in timeline.stages[1:]), 0.0]),
            np.array([stage.backward_s for stage in timeline.stages]),
            np.array(update_s),
            timeline.step_s,
        )


def finished_s(computed: Sequence[Computed], sums: Sequence[GradientExchange], seconds: Sequence[float]) -> float:
    """Returns when all stages of all pipelines have summed up their gradients and updated their parameters.

    As in Alpa, gradients are summed at the end of a stage's last backward pass, before the previous stage gets its last
    gradients; then the next stage updates. The sums are those of the last layers first, with the seconds of each.
    """
    done = [np.full(len(pipeline.free_s), np.nan) for pipeline in computed]
    ended = 0.0
    for exchange, sum_s in zip(sums, seconds, strict=True):
        for n, stage in enumerate(exchange.holders):
            if np.isnan(done[n][stage]):
                done[n][stage], before_s = _ready_s(computed[n], stage, done[n])
                ended = max(ended, before_s)
        end = max(done[n][stage] for n, stage in enumerate(exchange.holders)) + sum_s
        for n, stage in enumerate(exchange.holders):
            done[n][stage] = end
    first_s = (float(stages[0] + pipeline.update_s[0]) for pipeline, stages in zip(computed, done, strict=True))
    return max(ended, *first_s)


def _ready_s(pipeline: Computed, stage: int, done: FloatArray) -> tuple[float, float]:
    """Returns when a stage has its gradients, and when the next stage has updated."""
    free_s = float(pipeline.free_s[stage])
    if stage + 1 == len(done):
        return free_s + float(pipeline.last_s[stage]), 0.0
    next_s, sent_s = float(done[stage + 1]), float(pipeline.arriving_s[stage])
    arrived_s = max(free_s, next_s) + sent_s
    updates_s = arrived_s if sent_s > 0 else next_s
    return arrived_s + float(pipeline.last_s[stage]), updates_s + float(pipeline.update_s[stage + 1])
