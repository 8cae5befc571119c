"""The best plan that a training framework can run, and what it costs that it can't run the best of all."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from alpa_dejavu._util import units
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.ties import TOLERANCE, least
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.planning.given._annotations import Annotation, Chosen
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.result import OURS, PlanningResult
from alpa_dejavu.planning.search.models.model_source import ModelSource
from alpa_dejavu.planning.search.restriction import Restriction
from alpa_dejavu.planning.search.runtimes import Hindrance, check_schedule_of, hindrances
from alpa_dejavu.planning.task import Clock, PlanningTask, SpaceRules
from alpa_dejavu.problem import Model, NoPlanError, Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.rivals import Strategy


def in_blocks(
    model: str | Callable[..., Any] | Model | ModelSource, runs_on: str, strategy: str | Strategy
) -> str | Callable[..., Any] | Model | ModelSource:
    """Returns a known transformer's sizes as text, to be planned in its blocks; for Alpa, models as they are, and
    layers too. Raises ValueError for another model, which no framework but Alpa has by its layers.
    """
    if strategy != OURS:
        raise ValueError(
            f"strategy is {strategy!r}, but must be {OURS!r} where the plan is for {runs_on}: other strategies have "
            "rules of their own; leave one of them out"
        )
    size = transformer_size(model) if isinstance(model, str) and runs_on != "alpa" else None
    if size is None and runs_on != "alpa" and not isinstance(model, (Model, ModelSource)):
        name = model if isinstance(model, str) else getattr(model, "__name__", "this model")
        raise ValueError(
            f"runs_on is {runs_on!r}, but must be 'alpa' for {name}, whose layers aren't the blocks of a transformer; "
            "give a transformer by its name, its sizes or its config.json, or plan without --for"
        )
    return model if size is None else size.text


def plan_for(
    task: PlanningTask, runs_on: str, limits: Restriction, clock: Clock, free: Plan | None = None
) -> PlanningResult:
    """Returns the best plan for a task that a training framework can run, with a note on what that restriction costs
    beside the best plan for any framework (`free`; None: it is looked for). Raises ValueError for a schedule that the
    framework hasn't, and NoPlanError if nothing that it can run fits.
    """
    search, rules = None, task.space
    assert isinstance(rules, SpaceRules), "a restriction is one of rules"
    if free is None and rules.divisions.plain:
        with contextlib.suppress(NoPlanError), collector_paused():
            search = task.chooser.choose(task, clock)
            free = plan(task, (), clock, search=search).plan
    why = None if free is None else next(hindrances(free, runs_on, limits.limits), None)
    # What a framework divides in its own way isn't searched for all others.
    notes = [_what_it_costs(runs_on, free, why)] if free is not None or rules.divisions.plain else []
    if free is not None and why is None and search is not None:
        return plan(task, clock=clock, more=notes, search=search)
    schedules = [name for name in (task.schedule, *task.other_schedules) if limits.limits.has(name)]
    if not schedules:
        check_schedule_of(runs_on, task.schedule)
    alone = [name for name in schedules if name in limits.limits.schedules_alone]
    piped = [name for name in schedules if name not in alone]
    tasks = [
        dataclasses.replace(
            task,
            space=dataclasses.replace(rules, restriction=dataclasses.replace(limits, alone=names is alone)),
            schedule=names[0],
            other_schedules=tuple(names[1:]),
        )
        for names in (piped, alone)
        if names
    ]
    return _best(tasks, clock, notes)


def _best(tasks: Sequence[PlanningTask], clock: Clock, notes: Sequence[Annotation]) -> PlanningResult:
    results, none = [], NoPlanError("there are no tasks")
    for task in tasks:
        try:
            results.append(plan(task, clock=clock, more=notes))
        except NoPlanError as error:
            none = error
    if not results:
        raise none
    return least(results, key=lambda result: result.plan.step_s)


def _what_it_costs(runs_on: str, free: Plan | None, why: Hindrance | None) -> Annotation:
    """Returns the annotation that says how much longer a step takes because a framework runs it."""

    def annotate(plan: Plan, chosen: Chosen) -> Plan:
        more = 0.0 if free is None else plan.step_s / free.step_s - 1
        if free is None:
            note = f"{runs_on} can run it; a search for what no framework restricts found nothing that fits"
        elif why is None or more <= TOLERANCE:
            note = f"{runs_on} can run it, and nothing better was found for any framework: that costs nothing"
        else:
            note = (
                f"that {runs_on} can run it costs {more:.1%}: the best plan found for any framework takes "
                f"{units.seconds(free.step_s)}, but {runs_on} can't run it, since {why.why}"
            )
        return dataclasses.replace(plan, notes=(*plan.notes, note))

    return annotate
