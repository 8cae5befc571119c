"""What a whole plan is searched for: a model at any number of layers and micro-batches, and what stays the same."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._diagnosis import no_plan
from alpa_dejavu.calibration import Calibration
from alpa_dejavu.cost_models import CostModels
from alpa_dejavu.cost_table import CostTable, cost_table
from alpa_dejavu.memory_margin import COUNTED, MemoryMargin
from alpa_dejavu.micro_batch import with_micro_batch
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Plan, Run, SearchSpace
from alpa_dejavu.search import Candidate, proposed, simulated
from alpa_dejavu.slicing import Slicer
from alpa_dejavu.space import search_space

if TYPE_CHECKING:
    from alpa_dejavu.history import Correction
    from alpa_dejavu.simulate import Timeline

__all__ = ["Clock", "Question", "Source", "timeline_of_plan"]


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
class Source:
    """The model: traced once with so many samples in a micro-batch, cut into as many layers as are asked for."""

    def __init__(self, model: str | Callable[..., Any], micro_batch: int, clock: Clock) -> None:
        from alpa_dejavu import layers

        clock.lap("import")
        self.micro_batch, self._clock, self._layers = micro_batch, clock, layers
        self._traced = layers.trace(model, batch=micro_batch)
        self._models: dict[int, Model] = {}
        self.name, self.training = self._traced.name, self._traced.training
        clock.lap("trace")

    def numbers_of_layers(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """The wanted numbers, or the nearest lower ones that the model can be cut into."""
        return tuple(dict.fromkeys(self._layers.most_layers(self._traced, number) for number in wanted))

    def model(self, num_layers: int, micro_batch: int) -> Model:
        """Cut into so many layers, for a micro-batch of so many samples."""
        if num_layers not in self._models:
            self._models[num_layers] = self._layers.model_of_step(self._traced, num_layers)
            self._clock.lap("features")
        return with_micro_batch(self._models[num_layers], micro_batch / self.micro_batch)


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
    models: CostModels
    margin: MemoryMargin = COUNTED
    calibration: Calibration | None = None

    def best(self, source: Source, layers: int, count: int, clock: Clock) -> Candidate | None:
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

    def nothing(self, source: Source, layers: int, count: int) -> NoPlanError:
        """Why there is no candidate, for so many micro-batches."""
        model, table, space, run = self._table(source, layers, count, Clock())
        return no_plan(model, self.cluster, space, run, table, self.slicer)

    def corrected(self, plans: Sequence[Plan], model: Model, correction: Correction) -> list[Plan]:
        """Plans by past runs; all of them are of one model."""
        from alpa_dejavu.history import Origin, corrected

        origin = Origin.of(model, self.cluster, self.models.latency, self.models.communication, self.calibration)
        return [corrected(plan, correction.of(origin, plan)) for plan in plans]

    def _table(
        self, source: Source, layers: int, count: int, clock: Clock
    ) -> tuple[Model, CostTable, SearchSpace, Run]:
        micro_batch = self.batch // count
        model, run = source.model(layers, micro_batch), Run(count, self.schedule)
        space = search_space(self.cluster, micro_batch, self.submeshes, self.remat, self.zero)
        if model.sharding is not None:
            model.sharding.prepare(config for row in space.configs for config in row if config is not None)
            clock.lap("sharding")
        table = cost_table(model, self.cluster, space, run, self.models, self.margin)
        return model, table, space, run


def timeline_of_plan(timeline: Timeline, plan: Plan) -> Timeline:
    """A timeline as predicted, with its seconds corrected as those of its plan are."""
    if plan.correction is None:
        return timeline
    from alpa_dejavu.history import corrected_timeline

    return corrected_timeline(timeline, plan.correction.factor)
