"""The way through: a task in, a plan out, whoever asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.search_watch import is_stopped
from alpa_dejavu.planning.given._annotations import ANNOTATIONS, Annotation, Chosen
from alpa_dejavu.planning.result import PlanningResult, RunnerUp, front, why_not
from alpa_dejavu.planning.search._diagnosis import nothing_fits
from alpa_dejavu.planning.search._ranking import Ranked, contenders, ranked
from alpa_dejavu.planning.task import Clock, Found, PlanningTask
from alpa_dejavu.problem import Plan

__all__ = ["plan"]

_RUNNERS_UP = 3


def plan(
    task: PlanningTask,
    annotations: Sequence[Annotation] = ANNOTATIONS,
    clock: Clock | None = None,
    more: Sequence[Annotation] = (),
    search: Found | None = None,
) -> PlanningResult:
    """Returns the best plan for a planning task, with the next best ones and what they were made from.

    Args:
        task: all that the plan follows from: the model, the cluster, and what may be chosen.
        annotations: what is added to the chosen plan: its confidence, unused hosts, risk of running out of memory, and
            contingencies if the task asks for them.
        clock: a stopwatch that has the seconds of steps of the planning that came before; None: there were none.
        more: further annotations, behind these.
        search: what the task's chooser has answered already; None: it is asked.

    Raises:
        KeyboardInterrupt: somebody has stopped the search before it had a plan.
        NoPlanError: nothing fits; says what is missing where, and what would help.
        ValueError: the task contradicts itself, or asks for what its chooser can't do.
    """
    clock, annotations = clock or Clock(), (*annotations, *more)
    task = dataclasses.replace(task, slicer=task.source.remembering(task.slicer))
    try:
        with collector_paused():
            search = search or task.chooser.choose(task, clock)
            if not search.candidates:
                if is_stopped():
                    raise KeyboardInterrupt
                raise nothing_fits(task)
            ranking = ranked(task, search, clock)
            rivals = contenders(ranking, search, task.contenders)
            best, *others = [
                _annotated(choice, ranking, annotations, task, search, clock) for choice in (ranking[0], *rivals)
            ]
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
            RunnerUp(other.plan, why_not(other.plan, best, task.cluster, task.objective))
            for other in ranking[1 : _RUNNERS_UP + 1]
        ),
        front=front([best, *(other.plan for other in ranking[1:])], task.cluster) if task.objective == "pareto" else (),
        contenders=tuple(others),
    )


def _annotated(
    choice: Ranked,
    ranking: Sequence[Ranked],
    annotations: Sequence[Annotation],
    task: PlanningTask,
    search: Found,
    clock: Clock,
) -> Plan:
    """Returns the plan of a ranked candidate with its annotations, as if it had been chosen."""
    order = [choice, *(other for other in ranking if other is not choice)]
    candidates = [ranked.candidate for ranked in order]
    compared = [ranked.candidate for ranked in order if ranked is choice or ranked.rivals]
    plan = choice.plan
    for annotation in annotations:
        plan = annotation(plan, Chosen(task, search, candidates, compared, clock))
    return plan
