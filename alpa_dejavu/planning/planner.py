"""The way through: a task in, a plan out, whoever asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.planning.given._annotations import ANNOTATIONS, Annotation, Chosen
from alpa_dejavu.planning.result import PlanningResult, RunnerUp
from alpa_dejavu.planning.search._bench import nothing_fits
from alpa_dejavu.planning.search._clock import Clock
from alpa_dejavu.planning.search._ranking import Ranked, contenders, ranked
from alpa_dejavu.planning.search.price import front, why_not
from alpa_dejavu.planning.task import Found, PlanningTask
from alpa_dejavu.problem import Plan

__all__ = ["plan"]

_RUNNERS_UP = 3


def plan(
    task: PlanningTask,
    annotations: Sequence[Annotation] = ANNOTATIONS,
    clock: Clock | None = None,
    more: Sequence[Annotation] = (),
) -> PlanningResult:
    """Returns the best plan for a planning task, with the next best ones and what they were made from.

    Args:
        task: all that the plan follows from: the model, the cluster, and what may be chosen.
        annotations: what is added to the chosen plan: its confidence, unused hosts, contingencies, risk of running out
            of memory.
        clock: a stopwatch that has the seconds of steps of the planning that came before; None: there were none.
        more: further annotations, behind these.

    Returns:
        The plan, the next best ones, and all that it was made from.

    Raises:
        NoPlanError: nothing fits; says what is missing where, and what would help.
        ValueError: the task contradicts itself, or asks for what its chooser can't do.
    """
    clock, annotations = clock or Clock(), (*annotations, *more)
    try:
        with collector_paused():
            found = task.chooser.choose(task, clock)
            if not found.candidates:
                raise nothing_fits(task)
            ranking = ranked(task, found, clock)
            tried = contenders(ranking, found, task.contenders)
            best, *others = [_annotated(one, ranking, annotations, task, found, clock) for one in (ranking[0], *tried)]
    finally:
        task.source.keep()
        clock.lap("cache")
    best, chosen = dataclasses.replace(best, planning_s=dict(clock.seconds)), ranking[0].candidate
    return PlanningResult(
        plan=best,
        model=chosen.model,
        cluster=task.cluster,
        space=chosen.space,
        run=chosen.run,
        table=chosen.table,
        timeline=ranking[0].timeline,
        choices=chosen.stages,
        runners_up=tuple(
            RunnerUp(one.plan, why_not(one.plan, best, task.cluster, task.objective))
            for one in ranking[1 : _RUNNERS_UP + 1]
        ),
        front=front([best, *(one.plan for one in ranking[1:])], task.cluster) if task.objective == "pareto" else (),
        contenders=tuple(others),
    )


def _annotated(
    one: Ranked, ranking: Sequence[Ranked], annotations: Sequence[Annotation], task: PlanningTask, found: Found,
    clock: Clock,
) -> Plan:
    """Returns the plan of a ranked candidate with its annotations, as if it had been chosen."""
    others = [other for other in ranking if other is not one]
    candidates = [each.candidate for each in (one, *others)]
    compared = [each.candidate for each in (one, *others) if each is one or each.rivals]
    plan = one.plan
    for annotation in annotations:
        plan = annotation(plan, Chosen(task, found, candidates, compared, clock))
    return plan
