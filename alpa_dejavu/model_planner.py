"""From a model's name and a cluster to a whole plan, without devices, Ray or Alpa."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, final

from alpa_dejavu._diagnosis import no_plan
from alpa_dejavu._finished import finished_plan
from alpa_dejavu.breakdown import why_slower
from alpa_dejavu.communication import CommunicationModel, communication_model
from alpa_dejavu.cost_table import CostTable, cost_table
from alpa_dejavu.latency import LatencyModel, latency_model
from alpa_dejavu.planned import Planned, RunnerUp
from alpa_dejavu.pricing import with_micro_batch
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Plan, Run, SearchSpace
from alpa_dejavu.search import Candidate, micro_batch_counts, proposals, ranked
from alpa_dejavu.slicing import Slicer, slicer
from alpa_dejavu.space import search_space

__all__ = ["plan_model"]

_LAYERS = (16, 32)
"""Numbers of layers that are tried where the number is left open, the first one with every number of micro-batches."""
_COUNTS = 2
"""With how many of the best numbers of micro-batches other lengths and other numbers of layers are tried."""
_RUNNERS_UP = 3


def plan_model(
    model: str | Callable[..., Any],
    cluster: str | Cluster,
    hosts: int = 1,
    batch: int = 1024,
    micro_batches: int | None = None,
    layers: int | None = None,
    schedule: str = "1f1b",
    *,
    remat: Sequence[str] = ("none", "layer"),
    zero: Sequence[int] = (0, 2, 3),
    submeshes: str = "power_of_two",
    slicing: str | Slicer = "dynamic",
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
) -> Planned:
    """The best plan for a model on a cluster.

    Args:
        model: a name that `alpa_dejavu.models.known_models` lists, "module:function", or such a function: it takes
            `batch_size` and returns a train step with its abstract arguments.
        cluster: the name of a machine type, the path of a machine file, or a `Cluster`.
        hosts: how many machines of that type.
        batch: samples of a step.
        micro_batches: how many the batch is cut into; None chooses.
        layers: how many the model is cut into; None chooses.
        schedule: one of Alpa's.
        remat: what a stage may do: "none", "layer".
        zero: ZeRO levels that a stage may have: 0, 2, 3.
        submeshes: as `alpa_dejavu.space.submeshes` takes it.
        slicing: a slicer or its name.
        latency: a latency model or its name.
        communication: a communication model or its name.

    Returns:
        The plan, with the three next best ones and all that it was made from.

    Raises:
        NoPlanError: nothing fits; says what is missing where, and what would help.
        ValueError: an unknown name, or a number of micro-batches that doesn't divide the batch.
    """
    if micro_batches is not None and (micro_batches < 1 or batch % micro_batches):
        raise ValueError(f"{micro_batches} micro-batches don't divide a batch of {batch}; give a divisor, or auto")
    from alpa_dejavu.clusters import named_cluster

    question = _Question(
        cluster=named_cluster(cluster, hosts) if isinstance(cluster, str) else cluster,
        batch=batch,
        schedule=schedule,
        remat=tuple(remat),
        zero=tuple(zero),
        submeshes=submeshes,
        slicer=slicer(slicing),
        latency=latency_model(latency),
        communication=communication_model(communication),
    )
    clock = _Clock()
    counts = micro_batch_counts(batch) if micro_batches is None else (micro_batches,)
    source = _Source(model, batch // counts[len(counts) // 2], clock)
    first, *others = _LAYERS if layers is None else (layers,)
    candidates = question.candidates(source, first, counts, clock, lengths=len(counts) <= _COUNTS)
    best_counts = tuple(dict.fromkeys(candidate.run.num_micro_batches for candidate in candidates))[:_COUNTS] or counts
    if len(counts) > _COUNTS:
        others = [first, *others]
        candidates = [candidate for candidate in candidates if candidate.run.num_micro_batches not in best_counts]
    for number in others:
        more = question.candidates(source, number, best_counts, clock, lengths=True)
        candidates = sorted([*candidates, *more], key=lambda candidate: candidate.step_s)
    if not candidates:
        raise question.nothing(source, first, counts[-1])
    best, *rest = (_finished(candidate, source.name, question, clock) for candidate in candidates[: _RUNNERS_UP + 1])
    chosen = candidates[0]
    assert chosen.timeline is not None, "ranking simulates"
    return Planned(
        plan=best,
        model=chosen.model,
        cluster=question.cluster,
        space=chosen.space,
        run=chosen.run,
        table=chosen.table,
        timeline=chosen.timeline,
        runners_up=tuple(RunnerUp(other, why_slower(other, best)) for other in rest),
    )


@final
class _Clock:
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
class _Source:
    """The model: traced once with so many samples in a micro-batch, cut into as many layers as are asked for."""

    def __init__(self, model: str | Callable[..., Any], micro_batch: int, clock: _Clock) -> None:
        from alpa_dejavu import layers

        clock.lap("import")
        self.micro_batch, self._clock, self._layers = micro_batch, clock, layers
        self._traced = layers.trace(model, batch=micro_batch)
        self._models: dict[int, Model] = {}
        self.name = self._traced.name
        clock.lap("trace")

    def model(self, num_layers: int, micro_batch: int) -> Model:
        """Cut into so many layers, for a micro-batch of so many samples."""
        if num_layers not in self._models:
            self._models[num_layers] = self._layers.model_of_step(self._traced, num_layers)
            self._clock.lap("features")
        return with_micro_batch(self._models[num_layers], micro_batch / self.micro_batch)


@final
@dataclasses.dataclass(frozen=True)
class _Question:
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

    def candidates(
        self, source: _Source, layers: int, counts: Sequence[int], clock: _Clock, lengths: bool
    ) -> list[Candidate]:
        """The slicer's proposals for each number of micro-batches, simulated, the shortest step first."""
        found: list[Candidate] = []
        for count in counts:
            model, table, space, run = self._table(source, layers, count)
            clock.lap("cost table")
            found += proposals(model, table, self.cluster, space, run, self.slicer, lengths)
            clock.lap("slicing")
        order = ranked(found, self.cluster)
        clock.lap("simulation")
        return order

    def nothing(self, source: _Source, layers: int, count: int) -> NoPlanError:
        """Why there is no candidate, for so many micro-batches."""
        model, table, space, run = self._table(source, layers, count)
        return no_plan(model, self.cluster, space, run, table, self.slicer)

    def _table(self, source: _Source, layers: int, count: int) -> tuple[Model, CostTable, SearchSpace, Run]:
        micro_batch = self.batch // count
        model, run = source.model(layers, micro_batch), Run(count, self.schedule)
        space = search_space(self.cluster, micro_batch, self.submeshes, self.remat, self.zero)
        return model, cost_table(model, self.cluster, space, run, self.latency, self.communication), space, run


def _finished(candidate: Candidate, name: str, question: _Question, clock: _Clock) -> Plan:
    return finished_plan(
        candidate.slicing.stages,
        candidate.table,
        question.cluster,
        candidate.space,
        candidate.run,
        step_s=candidate.step_s,
        lower_bound_s=candidate.slicing.lower_bound_s,
        planning_s=clock.seconds,
        model=name,
        batch=question.batch,
    )
