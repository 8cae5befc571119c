"""What two plans differ in, and what each difference costs: one is changed into the other, a step at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import final

from alpa_dejavu.problem import Plan, StagePlan

__all__ = ["Difference", "differences", "stages_text"]


@final
@dataclasses.dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
        what: in a word.
        first, second: what it is in either plan.
        cost_s: how much longer a step takes with the second, the differences before it being made already; None where
            it can't be told. Costs add up to the difference of the steps.
    """

    what: str
    first: str
    second: str
    cost_s: float | None = None


def differences(first: Plan, second: Plan, step_s: Callable[[Plan], float] | None = None) -> tuple[Difference, ...]:
    """The differences in the order in which they are made.

    That is: problem, micro-batches, schedule, stages, remat, ZeRO, hosts. Where stages change, their hosts come along.

    Args:
        first: the plan that is changed.
        second: what it is changed into.
        step_s: seconds of a step of a plan that is in between, such as `Estimator.estimate` gives. It isn't called
            where the plans are for different models, clusters or batches: those are other problems.
    """
    found = [Difference(*row) for row in _of_problem(first, second)]
    pricing = step_s if not found else None
    seconds = None if pricing is None else pricing(first)
    for what, after, texts in _changes(first, second):
        if texts[0] != texts[1]:
            cost = None
            if pricing is not None and seconds is not None:
                now = pricing(after)
                seconds, cost = now, now - seconds
            found.append(Difference(what, *texts, cost))
    return tuple(found)


def _of_problem(first: Plan, second: Plan) -> Iterator[tuple[str, str, str]]:
    for what in ("model", "cluster", "batch", "layer_option"):
        texts = str(getattr(first, what)), str(getattr(second, what))
        if texts[0] != texts[1]:
            yield (what.replace("_", " "), *texts)


def _changes(first: Plan, second: Plan) -> Iterator[tuple[str, Plan, tuple[str, str]]]:
    """Each change, the plan after it, and what is before and after."""
    count = dataclasses.replace(first, num_micro_batches=second.num_micro_batches, batch=second.batch)
    yield "micro-batches", count, (str(first.num_micro_batches), str(second.num_micro_batches))
    schedule = dataclasses.replace(count, schedule=second.schedule)
    yield "schedule", schedule, (first.schedule, second.schedule)
    old = [_stage_at(first, stage.layers[0] / second.num_layers) for stage in second.stages]
    kept = list(zip(second.stages, old, strict=True))
    cut = tuple(dataclasses.replace(new, remat=was.remat, zero=was.zero) for new, was in kept)
    moves = [stage.submesh for stage in first.stages] == [stage.submesh for stage in second.stages]
    if moves:
        cut = tuple(dataclasses.replace(now, hosts=was.hosts) for now, was in zip(cut, first.stages, strict=True))
    yield "stages", dataclasses.replace(schedule, stages=cut), (stages_text(first), stages_text(second))
    remat = tuple(dataclasses.replace(now, remat=new.remat) for now, new in zip(cut, second.stages, strict=True))
    texts = " ".join(stage.remat for stage in cut), " ".join(stage.remat for stage in second.stages)
    yield "remat", dataclasses.replace(schedule, stages=remat), texts
    texts = " ".join(str(stage.zero) for stage in cut), " ".join(str(stage.zero) for stage in second.stages)
    zero = tuple(dataclasses.replace(now, zero=new.zero) for now, new in zip(remat, second.stages, strict=True))
    yield "ZeRO", dataclasses.replace(schedule, stages=zero), texts
    if moves:
        yield "hosts", dataclasses.replace(schedule, stages=second.stages), (_hosts(first), _hosts(second))


def _stage_at(plan: Plan, share: float) -> StagePlan:
    """The stage with the layer that is so far along the model."""
    layer = int(share * plan.num_layers)
    return next(stage for stage in plan.stages if layer <= stage.layers[1])


def _hosts(plan: Plan) -> str:
    return "; ".join(" ".join(stage.hosts) for stage in plan.stages)


def stages_text(plan: Plan) -> str:
    """The stages' layers, submeshes and logical meshes.

    A row of stages that are alike is told once.
    """
    rows: list[tuple[str, int]] = []
    for stage in plan.stages:
        shape = f"{stage.submesh.num_hosts}x{stage.submesh.devices_per_host}"
        layers = f"{stage.num_layers} layer{'s' if stage.num_layers > 1 else ''}"
        text = f"{layers} on {shape} as {'x'.join(map(str, stage.logical_mesh))}"
        if rows and rows[-1][0] == text:
            rows[-1] = (text, rows[-1][1] + 1)
        else:
            rows.append((text, 1))
    return ", ".join(text if times == 1 else f"{times} times {text}" for text, times in rows)
