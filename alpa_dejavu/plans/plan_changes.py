"""The changes that make one plan of another, and the plan in between that some of them make.

Stages that are as many as before differ in their layers, submeshes, logical meshes and hosts, each by itself; where a
submesh changes, its logical mesh and hosts come along. Of other numbers of stages all of that is one change, and what
stages have besides goes with their layers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.plans.stage_rows import DEGREES, degrees_text, mesh_text
from alpa_dejavu.problem import ZERO_NAMES, Plan, PricedBy, StagePlan
from alpa_dejavu.problem.run import schedule_form

_ZERO_OPTIONS = ("prefer_reduce_scatter", "force_zero_stage_3")
"""Options of Alpa's auto-sharding pass that say a stage's ZeRO level."""
_MODELS = ("latency", "communication", "calibration")
_WITH_LAYERS = ("remat", "ZeRO", "auto-sharding", "offload", *DEGREES)
"""The choices for a stage that go with its layers where the number of stages changes."""


def changes(first: Plan, second: Plan) -> Iterator[tuple[str, str, str]]:
    """Yields each difference of two plans as texts: the name of the choice, such as "schedule", and both its values."""
    pairs = [("micro-batches", str(first.num_micro_batches), str(second.num_micro_batches))]
    if _chunks_differ(first, second):
        first_text, other = (f"{plan.schedule}: {stages_text(plan)}" for plan in (first, second))
        pairs.append(("schedule", first_text, other))
    else:
        pairs.append(("schedule", first.schedule, second.schedule))
        if len(first.stages) != len(second.stages):
            pairs.append(("stages", stages_text(first), stages_text(second)))
    yield from (row for row in pairs if row[1] != row[2])
    for what in () if _chunks_differ(first, second) else (*_shape_changes(first, second), *_WITH_LAYERS):
        of, text = _OF_STAGES[what]
        if _differ(first, second, of):
            yield what, text(first.stages), text(second.stages)
    both = first.priced_by and second.priced_by
    for what, texts in (
        ("priced by", [priced_text(plan.priced_by) for plan in (first, second) if both]),
        ("correction", [_correction(plan) for plan in (first, second)]),
    ):
        if texts[:1] != texts[1:]:
            yield what, texts[0], texts[1]


def between(first: Plan, second: Plan, names: Collection[str]) -> Plan:
    """Returns the first plan with those of its differences that `names` has changed to the second plan's values."""

    def of(what: str) -> Plan:
        return second if what in names else first

    priced_by, correction = of("priced by").priced_by, of("correction").correction
    return dataclasses.replace(
        first,
        num_micro_batches=of("micro-batches").num_micro_batches,
        schedule=of("schedule").schedule,
        stages=tuple(_stages(first, second, of)),
        priced_by=priced_by or first.priced_by or second.priced_by,
        correction=correction,
    )


def _chunks_differ(first: Plan, second: Plan) -> bool:
    """Whether submeshes have other numbers of stages in the two plans: then the stages go with the schedule."""
    return schedule_form(first.schedule).chunks != schedule_form(second.schedule).chunks


def _stages(first: Plan, second: Plan, of: Callable[[str], Plan]) -> Iterator[StagePlan]:
    if _chunks_differ(first, second):
        yield from of("schedule").stages
        return
    if len(first.stages) != len(second.stages):
        shapes: Sequence[StagePlan] = of("stages").stages
    else:
        shapes = [_shape(n, first, second, of) for n in range(len(first.stages))]
    whole = shapes[-1].layers[1] + 1
    for n, stage in enumerate(shapes):
        remat, zero, options_of, offload, context, experts, shard = (
            _alike(of(what), n, stage, len(shapes), whole) for what in _WITH_LAYERS
        )
        kept = {name: value for name, value in zero.options.items() if name in _ZERO_OPTIONS}
        options = {**_options(options_of), **kept}
        yield dataclasses.replace(
            stage, remat=remat.remat, remat_share=remat.remat_share, zero=zero.zero, options=options,
            offload=offload.offload, context_parallel=context.context_parallel,
            expert_parallel=experts.expert_parallel, expert_tensor=experts.expert_tensor, sharded=shard.sharded,
        )  # fmt: skip


def _shape(n: int, first: Plan, second: Plan, of: Callable[[str], Plan]) -> StagePlan:
    """The n-th of equally many stages, as far as its layers and devices go."""
    stage = of("submeshes").stages[n]
    if "submeshes" not in _shape_changes(first, second):
        logical, hosts = of("logical meshes").stages[n], of("hosts").stages[n]
        stage = dataclasses.replace(stage, logical_mesh=logical.logical_mesh, hosts=hosts.hosts)
    return dataclasses.replace(stage, layers=of("layers").stages[n].layers)


def _alike(plan: Plan, n: int, stage: StagePlan, count: int, num_layers: int) -> StagePlan:
    """The stage of a plan that stands for the n-th of so many: that one, or the one with the layer it begins with."""
    if len(plan.stages) == count:
        return plan.stages[n]
    layer = stage.layers[0] * plan.num_layers // num_layers
    return next(candidate for candidate in plan.stages if layer <= candidate.layers[1])


def _shape_changes(first: Plan, second: Plan) -> tuple[str, ...]:
    if len(first.stages) != len(second.stages):
        return ()
    same = [stage.submesh for stage in first.stages] == [stage.submesh for stage in second.stages]
    return ("layers", "logical meshes", "hosts") if same else ("layers", "submeshes")


def _differ(first: Plan, second: Plan, of: Callable[[StagePlan], Any]) -> bool:
    """Whether stages of one plan have another value than those of the other that stand for them."""
    return any(
        of(stage) != of(_alike(other, n, stage, len(plan.stages), plan.num_layers))
        for plan, other in itertools.permutations((first, second))
        for n, stage in enumerate(plan.stages)
    )


def _options(stage: StagePlan) -> dict[str, Any]:
    """Returns a stage's options of Alpa's auto-sharding pass, without those that say the ZeRO level."""
    return {name: value for name, value in sorted(stage.options.items()) if name not in _ZERO_OPTIONS}


def _options_text(stage: StagePlan) -> str:
    return " ".join(f"{name}={value}" for name, value in _options(stage).items()) or "no options"


def _layers_text(stage: StagePlan) -> str:
    return units.counted(stage.num_layers, "layer")


def _devices_text(stage: StagePlan) -> str:
    return f"{stage.submesh.num_hosts}x{stage.submesh.devices_per_host} ({degrees_text(stage)})"


def priced_text(by: PricedBy | None) -> str:
    """Returns in words which latency model, communication model and calibration a plan's predicted seconds come from.

    >>> priced_text(PricedBy("analytic", "alpha-beta"))
    'analytic, alpha-beta, no calibration'
    """
    if by is None:
        return "models that its file doesn't say"
    models = [getattr(by, name) or f"no {name}" for name in _MODELS]
    return ", ".join(models if by.runtime == PricedBy.runtime else [*models, f"under {by.runtime}"])


def _correction(plan: Plan) -> str:
    return "none" if plan.correction is None else f"times {plan.correction.factor:.6g}"


def grouped(texts: Sequence[str]) -> str:
    """Returns texts joined by commas, where each run of equal ones is written once with their number.

    >>> grouped(["a", "a", "b"])
    '2 times a, b'
    """
    rows = [(text, len(list(alike))) for text, alike in itertools.groupby(texts)]
    return ", ".join(text if times == 1 else f"{times} times {text}" for text, times in rows)


def stages_text(plan: Plan) -> str:
    """Returns in words the layers, submeshes and logical meshes of a plan's stages, a run of alike ones once."""
    return grouped([f"{_layers_text(stage)} on {_devices_text(stage)}" for stage in plan.stages])


_Stages = Sequence[StagePlan]


def _degrees_text(name: str, stages: _Stages) -> str:
    none = "all" if name == "shard" else "1"
    return grouped([DEGREES[name](stage) or none for stage in stages])


_OF_STAGES: dict[str, tuple[Callable[[StagePlan], Any], Callable[[_Stages], str]]] = {
    "layers": (lambda stage: stage.layers, lambda stages: grouped(list(map(_layers_text, stages)))),
    "submeshes": (lambda stage: stage.submesh, lambda stages: grouped(list(map(_devices_text, stages)))),
    "logical meshes": (
        lambda stage: stage.logical_mesh, lambda stages: grouped([mesh_text(stage.logical_mesh) for stage in stages]),
    ),
    "hosts": (lambda stage: stage.hosts, lambda stages: grouped([name_ranges(stage.hosts) for stage in stages])),
    "remat": (lambda stage: stage.remat_text, lambda stages: grouped([stage.remat_text for stage in stages])),
    "ZeRO": (lambda stage: stage.zero, lambda stages: grouped([ZERO_NAMES[stage.zero] for stage in stages])),
    "offload": (lambda stage: stage.offloaded, lambda stages: grouped([stage.offloaded.text for stage in stages])),
    "auto-sharding": (_options, lambda stages: grouped(list(map(_options_text, stages)))),
    **{name: (text, functools.partial(_degrees_text, name)) for name, text in DEGREES.items()},
}  # fmt: skip
"""For each thing in which stages may differ its value, and text for a row of stages."""
