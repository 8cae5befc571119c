"""The best plan that a training framework can run, and what it costs that it can't run the best of all."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._util import units
from alpa_dejavu._util.ties import TOLERANCE, least
from alpa_dejavu.layers.models import transformer_size
from alpa_dejavu.planning.given._annotations import Annotation, Chosen
from alpa_dejavu.planning.planner import plan
from alpa_dejavu.planning.result import OURS, PlanningResult
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search._clock import Clock
from alpa_dejavu.planning.search.models.model_source import ModelSource
from alpa_dejavu.planning.search.restriction import Restriction
from alpa_dejavu.planning.search.runtimes import Hindrance, check_schedule_of, hindrances
from alpa_dejavu.planning.task import Chooser, Found, PlanningTask, SpaceRules
from alpa_dejavu.problem import Model, NoPlanError, Plan
from alpa_dejavu.schedules import schedule_kind

if TYPE_CHECKING:
    from alpa_dejavu.planning.rivals import Strategy

__all__ = ["in_blocks", "plan_for"]


def in_blocks(
    model: str | Callable[..., Any] | Model | ModelSource, runs_on: str, strategy: str | Strategy
) -> str | Callable[..., Any] | Model | ModelSource:
    """Returns the sizes of a known transformer as text, which is planned in its blocks; other models, and those for
    Alpa, as they are.

    Raises:
        ValueError: another strategy than our own search is to choose the plan.
    """
    if strategy != OURS:
        raise ValueError(
            f"strategy is {strategy!r}, but must be {OURS!r} where the plan is for {runs_on}: other strategies have "
            "rules of their own; leave one of them out"
        )
    size = transformer_size(model) if isinstance(model, str) and runs_on != "alpa" else None
    return model if size is None else size.text


def plan_for(
    task: PlanningTask, runs_on: str, limits: Restriction, clock: Clock, free: Plan | None = None
) -> PlanningResult:
    """Returns the best plan for a planning task that a training framework can run, with a note that says what that
    restriction costs.

    Args:
        task: the planning task, without the restriction.
        runs_on: the framework's name.
        limits: the restriction to what it can run.
        clock: a stopwatch that has the seconds of what came before.
        free: the best plan for any framework, where it is known; None: it is looked for, too.

    Raises:
        ValueError: the framework hasn't the schedule that the task has.
        NoPlanError: nothing that the framework can run fits.
    """
    known, rules = free is not None, task.space
    once = dataclasses.replace(task, chooser=_Once(task.chooser))
    free = free or _free(once, clock)
    assert isinstance(rules, SpaceRules), "a restriction is one of rules"
    why = None if free is None else next(hindrances(free, runs_on, limits.limits), None)
    note = _what_it_costs(runs_on, free, why)
    if free is not None and why is None and not known:
        return plan(once, clock=clock, more=[note])
    schedules = [name for name in (task.schedule, *task.other_schedules) if runs_on in schedule_kind(name).runtimes]
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
    return _best(tasks, clock, note)


def _best(tasks: Sequence[PlanningTask], clock: Clock, note: Annotation) -> PlanningResult:
    """The fastest of the best plans for some tasks."""
    found, none = [], NoPlanError("there are no tasks")
    for task in tasks:
        try:
            found.append(plan(task, clock=clock, more=[note]))
        except NoPlanError as error:
            none = error
    if not found:
        raise none
    return least(found, key=lambda one: one.plan.step_s)


@final
class _Once(Chooser):
    """A chooser that chooses by another one, and has the same answer when it is asked again for the same task."""

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser
        self._found: Found | None = None

    def choose(self, task: PlanningTask, clock: Clock) -> Found:
        if self._found is None:
            self._found = self._chooser.choose(task, clock)
        return self._found

    def again(self, task: PlanningTask, found: Sequence[Candidate], clock: Clock) -> Candidate | None:
        return self._chooser.again(task, found, clock)


def _free(task: PlanningTask, clock: Clock) -> Plan | None:
    """The best plan of all, without annotations; None if nothing fits."""
    try:
        return plan(task, (), clock).plan
    except NoPlanError:
        return None


def _what_it_costs(runs_on: str, free: Plan | None, why: Hindrance | None) -> Annotation:
    """Returns the annotation that says how much longer a step of a plan takes because a training framework runs it.

    Args:
        runs_on: the framework's name.
        free: the best plan of all; None: none fits.
        why: what keeps the framework from running that plan; None: nothing does.
    """

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
