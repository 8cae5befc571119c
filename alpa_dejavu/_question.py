"""What a whole plan is searched for: a model at any number of layers and micro-batches, and what stays the same."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, final

from alpa_dejavu._diagnosis import no_plan
from alpa_dejavu.calibration import Calibration
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.cost_table import CostTable, cost_table
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory_margin import COUNTED, MemoryMargin
from alpa_dejavu.model_source import ModelSource
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Plan, Run, SearchSpace
from alpa_dejavu.search import Candidate, proposed, simulated
from alpa_dejavu.slicing import Slicer
from alpa_dejavu.space import search_space

if TYPE_CHECKING:
    from alpa_dejavu.history import Correction
    from alpa_dejavu.simulate import Timeline

__all__ = ["Clock", "Question", "timeline_of_plan"]


@final
class Clock:
    """Seconds by the name of what took them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """What has passed since the last lap goes to a name."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now


@final
@dataclasses.dataclass(frozen=True)
class Question:
    """What stays the same while layers and micro-batches vary."""

    cluster: Cluster
    batch: int
    schedule: str
    remat: tuple[str, ...]
    zero: tuple[int, ...]
    submeshes: str
    slicer: Slicer
    latency: LatencyModel
    communication: CommunicationModel
    margin: MemoryMargin = COUNTED
    calibration: Calibration | None = None

    def best(self, source: ModelSource, layers: int, count: int, clock: Clock) -> Candidate | None:
        """The slicer's answer for so many layers and micro-batches, simulated; None if nothing fits."""
        model, table, space, run = self._table(source, layers, count, clock)
        clock.lap("cost table")
        found = proposed(model, table, self.cluster, space, run, self.slicer)
        clock.lap("slicing")
        if found is None:
            return None
        timed = simulated(found, self.cluster)
        clock.lap("simulation")
        return timed

    def nothing(self, source: ModelSource, layers: int, count: int) -> NoPlanError:
        """Why there is no candidate, for so many micro-batches."""
        model, table, space, run = self._table(source, layers, count, Clock())
        return no_plan(model, self.cluster, space, run, table, self.slicer)

    def corrected(self, plans: Sequence[Plan], model: Model, correction: Correction) -> list[Plan]:
        """Plans by past runs; all of them are of one model."""
        from alpa_dejavu.history import Origin, corrected

        origin = Origin.of(model, self.cluster, self.latency, self.communication, self.calibration)
        return [corrected(plan, correction.of(origin, plan)) for plan in plans]

    def _table(
        self, source: ModelSource, layers: int, count: int, clock: Clock
    ) -> tuple[Model, CostTable, SearchSpace, Run]:
        micro_batch = self.batch // count
        model, run = source.scaled(layers, micro_batch), Run(count, self.schedule)
        space = search_space(self.cluster, micro_batch, self.submeshes, self.remat, self.zero)
        if model.sharding is not None:
            model.sharding.prepare(config for row in space.configs for config in row if config is not None)
            clock.lap("sharding")
        table = cost_table(model, self.cluster, space, run, self.latency, self.communication, self.margin)
        return model, table, space, run


def timeline_of_plan(timeline: Timeline, plan: Plan) -> Timeline:
    """A timeline as predicted, with its seconds corrected as those of its plan are."""
    if plan.correction is None:
        return timeline
    from alpa_dejavu.history import corrected_timeline

    return corrected_timeline(timeline, plan.correction.factor)
