"""A strategy in the place of the search: from what is asked to a whole plan."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from alpa_dejavu._collector import collector_paused
from alpa_dejavu._question import Clock, Question, Source, timeline_of_plan
from alpa_dejavu.breakdown import why_slower
from alpa_dejavu.memory_margin import with_memory_note
from alpa_dejavu.model_planner import plan_model
from alpa_dejavu.planned import Planned, RunnerUp
from alpa_dejavu.problem import Cluster, NoPlanError
from alpa_dejavu.slicing import slicer
from alpa_dejavu.strategies import Strategy, strategy
from alpa_dejavu.strategies._asked import Asked

if TYPE_CHECKING:
    from alpa_dejavu.history import Correction

__all__ = ["planned_by"]

_DEFAULTS = inspect.signature(plan_model).parameters


def planned_by(
    choice: str | Strategy,
    question: Question,
    model: str | Callable[..., Any],
    counts: Sequence[int],
    layers: Sequence[int],
    objective: str = "time",
    correction: Correction | None = None,
) -> Planned:
    """The strategy's plan, for the number of layers with which it is fastest.

    Args:
        choice: who plans, or its name.
        question: what is asked; a strategy has its own space and search, so those are left as they are.
        model: as `plan_model` takes it.
        counts: of micro-batches; more than one: the strategy chooses.
        layers: numbers to cut the model into.
        objective: what is least: "time".
        correction: by past runs.

    Raises:
        NoPlanError: it has none.
        ValueError: an unknown name, a choice that the strategy doesn't have, or a model, batch or cluster that it
            can't handle; says which and why.
    """
    chosen = strategy(choice)
    _check_left(chosen, question, objective)
    clock = Clock()
    source = Source(model, question.batch // counts[len(counts) // 2], clock)
    count = counts[0] if len(counts) == 1 else None
    asked = Asked(chosen, question.batch, count, question.models, source.name)
    with collector_paused():
        best, *others = _of_numbers(asked, source, layers, question.cluster)
        clock.lap("strategy")
        runners_up = tuple(RunnerUp(other.plan, why_slower(other.plan, best.plan)) for other in others)
        best = asked.with_confidence(dataclasses.replace(best, runners_up=runners_up), others)
        clock.lap("confidence")
        best = asked.with_contingencies(best)
        clock.lap("contingencies")
    if correction is not None:
        best = _corrected(best, question, correction)
    plan = dataclasses.replace(best.plan, planning_s=dict(clock.seconds))
    return dataclasses.replace(best, plan=with_memory_note(plan, question.margin))


def _of_numbers(asked: Asked, source: Source, layers: Sequence[int], cluster: Cluster) -> list[Planned]:
    """The plans for some numbers of layers, the fastest first.

    Raises:
        NoPlanError: there are none.
    """
    found, nothing = list[Planned](), list[NoPlanError]()
    for number in source.numbers_of_layers(layers):
        try:
            found.append(asked.planned(source.model(number, source.micro_batch), source.micro_batch, cluster))
        except NoPlanError as error:
            nothing.append(error)
    if not found:
        raise nothing[0]
    return sorted(found, key=lambda one: one.plan.step_s)


def _check_left(chosen: Strategy, question: Question, objective: str) -> None:
    """Raises ValueError for a choice that only our own search has."""
    given = {
        "schedule": question.schedule, "remat": question.remat, "zero": question.zero, "submeshes": question.submeshes,
        "slicing": question.slicer, "objective": objective,
    }  # fmt: skip
    left = {name: _DEFAULTS[name].default for name in given}
    left["slicing"] = slicer(left["slicing"])
    other = next((name for name, value in given.items() if value != left[name]), None)
    if other is not None:
        raise ValueError(
            f"{other} is {given[other]!r}, but {chosen.name} has rules of its own and plans for the fastest 1F1B step; "
            f"leave {other} out, or choose the strategy 'dejavu'"
        )


def _corrected(found: Planned, question: Question, correction: Correction) -> Planned:
    """The plan and its timeline by past runs; the others stay as they are predicted."""
    (plan,) = question.corrected([found.plan], found.model, correction)
    return dataclasses.replace(found, plan=plan, timeline=timeline_of_plan(found.timeline, plan))
