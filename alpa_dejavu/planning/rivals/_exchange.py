"""The sums of gradients between data-parallel pipelines: which layers go together, and when all stages are done."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.rivals.stages import Pipeline
from alpa_dejavu.simulation.step import Timeline

__all__ = ["Computed", "Exchange", "exchanges", "finished_s"]


@final
@dataclasses.dataclass(frozen=True)
class Exchange:
    """A range of layers whose gradients are summed as one, since each pipeline has all of them in one stage.

    Attributes:
        first, last: the layers, inclusive.
        holders: for each pipeline the index of the stage that holds the layers.
    """

    first: int
    last: int
    holders: tuple[int, ...]

    def replicas(self, pipelines: Sequence[Pipeline]) -> list[tuple[int, ...]]:
        """Returns the hosts of the devices of each replica of the layers, in all pipelines."""
        held = (one.stages[stage] for one, stage in zip(pipelines, self.holders, strict=True))
        return [replica for stage in held for replica in stage.replicas]

    def abreast(self, sums: Sequence[Exchange], pipelines: Sequence[Pipeline]) -> int:
        """Returns how many groups of devices of other stages may sum up gradients at the same time over some of the
        same links between hosts.
        """
        links = self._links(pipelines)
        others = [one for one in sums if not self._meets(one) and not links.isdisjoint(one._links(pipelines))]
        return sum(min(map(len, one.replicas(pipelines))) for one in others)

    def _links(self, pipelines: Sequence[Pipeline]) -> set[tuple[int, int]]:
        """Returns the pairs of hosts that are neighbours on the ring."""
        hosts = [replica[0] for replica in self.replicas(pipelines)]
        ring = zip(hosts, [*hosts[1:], hosts[0]], strict=True)
        return {(min(pair), max(pair)) for pair in ring if pair[0] != pair[1]}

    def _meets(self, other: Exchange) -> bool:
        """Returns whether some stage takes part in both, so that they can't be at the same time."""
        return any(a == b for a, b in zip(self.holders, other.holders, strict=True))


def exchanges(pipelines: Sequence[Pipeline]) -> list[Exchange]:
    """Returns the ranges of layers whose gradients pipelines sum up as one, the last layers first.

    A range ends wherever a stage of some pipeline ends.

    >>> from alpa_dejavu.planning.rivals.stages import PlacedStage, config_of
    >>> alone = config_of(1, 1)
    >>> one = Pipeline((PlacedStage(0, 3, (0,), alone),), 1, 1)
    >>> two = Pipeline((PlacedStage(0, 2, (1,), alone), PlacedStage(3, 3, (1,), alone)), 1, 1)
    >>> [(sum.first, sum.last, sum.holders) for sum in exchanges([one, two])]
    [(3, 3, (0, 1)), (0, 2, (0, 0))]
    """
    ends = sorted({stage.last for pipeline in pipelines for stage in pipeline.stages})
    firsts = [0, *(end + 1 for end in ends[:-1])]
    return [
        Exchange(first, last, tuple(_holder(pipeline, first) for pipeline in pipelines))
        for first, last in reversed(list(zip(firsts, ends, strict=True)))
    ]


def _holder(pipeline: Pipeline, layer: int) -> int:
    return next(n for n, stage in enumerate(pipeline.stages) if stage.first <= layer <= stage.last)


@final
@dataclasses.dataclass(frozen=True)
class Computed:
    """The computation of a pipeline's step before gradients are summed with other pipelines: for each of its S stages
    the seconds that tell when its gradients are there, and what follows.

    Attributes:
        free_s: when the stage is done with all but its last backward pass, shape (S,).
        arriving_s: the seconds of the transfer that this pass waits for, from the next stage, shape (S,); 0 where there
            is none.
        last_s: the seconds of that pass, shape (S,).
        update_s: the seconds of the update, shape (S,).
        computing_s: when all micro-batches are computed, if nothing is summed.
    """

    free_s: FloatArray
    arriving_s: FloatArray
    last_s: FloatArray
    update_s: FloatArray
    computing_s: float

    @classmethod
    def of(cls, timeline: Timeline, update_s: Sequence[float]) -> Computed:
        """Returns what a simulated 1F1B step computes, in which nothing is done once a step."""
        backward, ahead, back = (one[:, :, 1] for one in (timeline.backward_s[:, :-1], *_sends(timeline)))
        none = np.full((1, timeline.num_micro_batches), np.nan)
        arrived, returned = np.concatenate([none, ahead[:-1]]), np.concatenate([back[1:], none])[:, :-1]
        before = [timeline.forward_s[:, :, 1], backward, ahead, arrived, back[:, :-1], returned]
        sent = [stage.backward_send_s for stage in timeline.stages]
        return cls(
            np.nanmax(np.concatenate(before, axis=1), axis=1),
            np.array([*sent[1:], 0.0]),
            np.array([stage.backward_s for stage in timeline.stages]),
            np.array(update_s),
            timeline.step_s,
        )


def _sends(timeline: Timeline) -> tuple[FloatArray, FloatArray]:
    return timeline.forward_send_s, timeline.backward_send_s


def finished_s(computed: Sequence[Computed], sums: Sequence[Exchange], seconds: Sequence[float]) -> float:
    """Returns when all stages of all pipelines have summed up their gradients and updated their parameters.

    As in Alpa, gradients are summed at the end of a stage's last backward pass, before the previous stage gets its
    last gradients: both wait for each other for that transfer, and then the next stage updates.

    Args:
        computed: what each pipeline computes.
        sums: the sums of gradients, the last layers first.
        seconds: of each sum.
    """
    done = [np.full(len(one.free_s), np.nan) for one in computed]
    ended = 0.0
    for one, took in zip(sums, seconds, strict=True):
        for n, stage in enumerate(one.holders):
            if np.isnan(done[n][stage]):
                done[n][stage], before_s = _ready_s(computed[n], stage, done[n])
                ended = max(ended, before_s)
        end = max(done[n][stage] for n, stage in enumerate(one.holders)) + took
        for n, stage in enumerate(one.holders):
            done[n][stage] = end
    return max(ended, *(float(stages[0] + one.update_s[0]) for one, stages in zip(computed, done, strict=True)))


def _ready_s(one: Computed, stage: int, done: FloatArray) -> tuple[float, float]:
    """Returns when a stage has its gradients, and when the next stage has updated."""
    free_s = float(one.free_s[stage])
    if stage + 1 == len(done):
        return free_s + float(one.last_s[stage]), 0.0
    next_s, sent_s = float(done[stage + 1]), float(one.arriving_s[stage])
    arrived_s = max(free_s, next_s) + sent_s
    updates_s = arrived_s if sent_s > 0 else next_s
    return arrived_s + float(one.last_s[stage]), updates_s + float(one.update_s[stage + 1])
