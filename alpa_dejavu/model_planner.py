"""From a model's name and a cluster to a whole plan, without devices, Ray or Alpa."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from alpa_dejavu._around import candidates
from alpa_dejavu._collector import collector_paused
from alpa_dejavu._finished import finished_plan
from alpa_dejavu._question import Clock, Question, Source, timeline_of_plan
from alpa_dejavu._unused import unused_hosts
from alpa_dejavu.calibration import Calibration, check_choice, prices
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.contingency import with_contingencies
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory_margin import DEFAULT_RISK, MemoryMargin, MemoryResiduals, with_memory_note
from alpa_dejavu.planned import OBJECTIVES, OURS, Planned, RunnerUp
from alpa_dejavu.price import as_cheap, check_prices, front, on_fewer_hosts, ordered, why_not
from alpa_dejavu.problem import Cluster, Plan
from alpa_dejavu.problem._check import one_of
from alpa_dejavu.search import Candidate, micro_batch_counts
from alpa_dejavu.slicing import Slicer, slicer
from alpa_dejavu.uncertainty import confidence

if TYPE_CHECKING:
    from alpa_dejavu.history import Correction
    from alpa_dejavu.strategies import Strategy

__all__ = ["plan_model"]

_LAYERS = (16, 32)
"""Numbers of layers that are tried where the number is left open, the first one with numbers of micro-batches."""
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
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    risk: float = DEFAULT_RISK,
    memory: MemoryResiduals | None = None,
    history: str | os.PathLike[str] | None = None,
    calibration: str | os.PathLike[str] | Calibration | None = None,
    objective: str = "time",
    strategy: str | Strategy = OURS,
) -> Planned:
    """The best plan for a model on a cluster.

    Args:
        model: a name that `alpa_dejavu.models.known_models` lists, "module:function", or such a function: it takes
            `batch_size` and returns a train step with its abstract arguments.
        cluster: the name of a machine type, the path of a machine or cluster file, or a `Cluster`.
        hosts: how many machines of that type.
        batch: samples of a step.
        micro_batches: how many the batch is cut into; None chooses.
        layers: how many the model is cut into; None chooses.
        schedule: one of Alpa's; a step without gradients always has "inference".
        remat: what a stage may do: "none", "layer".
        zero: ZeRO levels that a stage may have: 0, 2, 3.
        submeshes: as `alpa_dejavu.space.submeshes` takes it.
        slicing: a slicer or its name.
        latency: a latency model or its name; "auto": the calibration's, or without one "analytic".
        communication: likewise; "auto": the calibration's, or without one "alpha-beta".
        risk: of running out of memory that a plan may have, where `memory` says enough to know it.
        memory: measured peaks against the analytic count; None: the calibration's, if it has any. Without any, plans
            are taken up to the limit by the count, and say that their risk is unknown.
        history: a file of past runs (`alpa_dejavu.history`), which may not be there yet: each plan's seconds are
            corrected by what the runs in it say of its like, and the best one is chosen by that. None: by no runs.
        calibration: a bundled name, a file's path, or a `Calibration`: figures and models of devices and links, in
            place of data sheets and of the two models; None: those.
        objective: what is least: "time", or "price" of a step, by the hosts' prices; plans on fewer hosts are then
            looked for too. "pareto": the fastest plan is given, with all those that cost less the slower they are.
        strategy: by whose search: "dejavu" is this package's; to compare with it, one of `alpa_dejavu.strategies` or
            its name: it has rules of its own in place of `schedule`, `remat`, `zero`, `submeshes`, `slicing` and
            `objective`, and its plan is costed as ours are.

    Returns:
        The plan, with the three next best ones and all that it was made from.

    Raises:
        NoPlanError: nothing fits; says what is missing where, and what would help.
        ValueError: an unknown name, a number of micro-batches that doesn't divide the batch, "inference" for a step
            that trains, a risk that isn't above 0 and below 0.5, a file that is no history, or a calibration that is
            broken, of other devices, or given beside a model; a host's price that isn't known; or what the strategy
            can't do.
    """
    if micro_batches is not None and (micro_batches < 1 or batch % micro_batches):
        raise ValueError(f"{micro_batches} micro-batches don't divide a batch of {batch}; give a divisor, or auto")
    one_of("plan_model", "objective", objective, OBJECTIVES)
    from alpa_dejavu.clusters import named_cluster

    correction = None if history is None else _read(history)
    known = check_choice(calibration, latency, communication)
    given = named_cluster(cluster, hosts) if isinstance(cluster, str) else cluster
    if objective != "time":
        check_prices(given)
    priced = prices(given, known, latency, communication)
    question = Question(
        cluster=priced.cluster,
        batch=batch,
        schedule=schedule,
        remat=tuple(remat),
        zero=tuple(zero),
        submeshes=submeshes,
        slicer=slicer(slicing),
        models=priced.models,
        margin=MemoryMargin(risk, priced.residuals(memory)),
        calibration=priced.calibration,
    )
    counts = micro_batch_counts(batch) if micro_batches is None else (micro_batches,)
    if strategy != OURS:
        from alpa_dejavu.strategies._planned import planned_by

        numbers = _LAYERS if layers is None else (layers,)
        return planned_by(strategy, question, model, counts, numbers, objective, correction)
    return _planned(question, model, counts, layers, correction, objective)


def _read(history: str | os.PathLike[str]) -> Correction:
    from alpa_dejavu.history import Correction

    return Correction.read(history)


def _planned(
    question: Question,
    model: str | Callable[..., Any],
    counts: Sequence[int],
    layers: int | None,
    correction: Correction | None,
    objective: str,
) -> Planned:
    """The answer, among some numbers of micro-batches."""
    clock = Clock()
    source = Source(model, question.batch // counts[len(counts) // 2], clock)
    question = dataclasses.replace(question, schedule=_schedule(question.schedule, source))
    tried = source.numbers_of_layers(_LAYERS) if layers is None else (layers,)
    with collector_paused():
        found = candidates(question, source, tried, counts, clock)
    if not found:
        raise question.nothing(source, tried[0], counts[-1])
    if objective != "time":
        with collector_paused():
            found += on_fewer_hosts(found, question.cluster, question.slicer)
        clock.lap("slicing")
    kept = found[: _RUNNERS_UP + 1] if correction is None and objective == "time" else found
    plans = [_finished(candidate, source.name, question, clock) for candidate in kept]
    if correction is not None:
        plans = question.corrected(plans, found[0].model, correction)
    order = ordered(plans, question.cluster, objective)
    first, *others = order[: _RUNNERS_UP + 1]
    chosen = found[first]
    compared = [n for n in range(len(found)) if n != first]
    if objective == "price":
        compared = as_cheap(plans, compared, first, question.cluster)
    best = _sure(plans[first], [chosen, *(found[n] for n in compared)], question, clock)
    assert chosen.timeline is not None, "ranking simulates"
    return Planned(
        plan=best,
        model=chosen.model,
        cluster=question.cluster,
        space=chosen.space,
        run=chosen.run,
        table=chosen.table,
        timeline=timeline_of_plan(chosen.timeline, best),
        runners_up=tuple(RunnerUp(plans[n], why_not(plans[n], best, question.cluster, objective)) for n in others),
        front=front([best, *(plans[n] for n in order[1:])], question.cluster) if objective == "pareto" else (),
    )


def _sure(plan: Plan, found: Sequence[Candidate], question: Question, clock: Clock) -> Plan:
    """The plan, which is the first candidate's, with how sure it is, what is run without a host, and its memory."""
    known = confidence(found, question.cluster)
    if known is not None and plan.correction is not None:
        known = known.times(plan.correction.factor)
    clock.lap("confidence")
    factor = 1.0 if plan.correction is None else plan.correction.factor
    notes = *plan.notes, *unused_hosts(found[0], question.cluster, question.slicer, factor)
    clock.lap("slicing")
    sure = dataclasses.replace(plan, confidence=known, notes=notes)
    sure = with_contingencies(sure, found[0], question.cluster, question.slicer, found[1:])
    clock.lap("contingencies")
    return with_memory_note(dataclasses.replace(sure, planning_s=dict(clock.seconds)), question.margin)


def _schedule(asked: str, source: Source) -> str:
    """The schedule asked for, or the one that a step without gradients has."""
    if source.training and asked == "inference":
        raise ValueError(
            f"schedule is 'inference', but the step of {source.name} takes gradients; "
            "give a step without them, or the schedule '1f1b'"
        )
    return asked if source.training else "inference"


def _finished(candidate: Candidate, name: str, question: Question, clock: Clock) -> Plan:
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
