"""The way through: a task in, a plan out, whoever asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.search_watch import is_stopped
from alpa_dejavu.clusters.space import PLAIN_CHOICES
from alpa_dejavu.planning.given._annotations import ANNOTATIONS, Annotation, Chosen
from alpa_dejavu.planning.result import PlanningResult, RunnerUp, front, why_not
from alpa_dejavu.planning.search._diagnosis import nothing_fits
from alpa_dejavu.planning.search._ranking import Ranked, contenders, ranked
from alpa_dejavu.planning.task import Clock, Found, PlanningTask, SpaceRules
from alpa_dejavu.plans.stage_rows import plan_text
from alpa_dejavu.problem import Plan

_RUNNERS_UP = 3


def plan(
    task: PlanningTask,
    annotations: Sequence[Annotation] = ANNOTATIONS,
    clock: Clock | None = None,
    more: Sequence[Annotation] = (),
    search: Found | None = None,
) -> PlanningResult:
    """Returns the best plan for a planning task, with the next best ones and what they were made from.

    `clock` has the seconds of steps that came before; `more` annotations come behind the others; `search` is what the
    task's chooser has answered already. Raises NoPlanError, which says what is missing and would help, if nothing fits;
    KeyboardInterrupt if the search was stopped before it had a plan; ValueError if the task contradicts itself.
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
        simulated=lambda: ranking[0].timeline,
        choices=chosen.stages,
        divisions=task.space.divisions if isinstance(task.space, SpaceRules) else PLAIN_CHOICES,
        runners_up=tuple(_runners_up(best, ranking, task)),
        front=front([best, *(other.plan for other in ranking[1:])], task.cluster) if task.objective == "pareto" else (),
        contenders=tuple(others),
        models=task.source.exact_models(chosen.model.num_layers),
    )


def _runners_up(best: Plan, ranking: Sequence[Ranked], task: PlanningTask) -> Iterator[RunnerUp]:
    """Yields the next best plans that read unlike the best one and each other, and the best one without a pipeline,
    which is simpler to run.
    """
    unlike = {plan_text(best): best}
    for other in ranking[1:]:
        unlike.setdefault(plan_text(other.plan), other.plan)
    _, *others = unlike.values()
    near, far = others[:_RUNNERS_UP], others[_RUNNERS_UP:]
    for plan in near:
        yield RunnerUp(plan, why_not(plan, best, task.cluster, task.objective))
    if all(len(plan.stages) > 1 for plan in (best, *near)):
        for plan in [other for other in far if len(other.stages) == 1][:1]:
            why = why_not(plan, best, task.cluster, task.objective)
            yield RunnerUp(plan, f"{why}; the best without a pipeline")


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
