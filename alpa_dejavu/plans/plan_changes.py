"""The changes that make one plan of another, and the plan in between that some of them make.

Plans of equal submeshes on the same devices differ in what a training framework's user sets: degrees, schedule,
micro-batch and so on, each by itself. Of other plans, stages that are as many as before differ in their layers,
submeshes, logical meshes and hosts, each by itself; where a submesh changes, its logical mesh and hosts come along. Of
other numbers of stages all of that is one change, and what stages have besides goes with their layers.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.plans.outline import DEGREES, Outline
from alpa_dejavu.plans.stage_rows import DEGREE_TEXTS, again_text, degrees_text, mesh_text, recomputed_text
from alpa_dejavu.problem import ZERO_NAMES, NoPlanError, Plan, PricedBy, StagePlan
from alpa_dejavu.problem.run import schedule_form

_ZERO_OPTIONS = ("prefer_reduce_scatter", "force_zero_stage_3")
"""Options of Alpa's auto-sharding pass that say a stage's ZeRO level."""
_MODELS = ("latency", "communication", "calibration")
TRAINING = ("precision", "optimizer", "gather", "lora", "lora_targets", "frozen", "train_last")
"""The sizes in a model's text that say how it is trained, which its user sets."""
_USUAL = "as usual"
_WITH_LAYERS = ("recompute", "ZeRO", "auto-sharding", "offload", *DEGREE_TEXTS)
"""The choices for a stage that go with its layers where the number of stages changes."""


def changes(first: Plan, second: Plan) -> Iterator[tuple[str, str, str]]:
    """Yields each difference of two plans as texts: the name of the choice, such as "schedule", and both its values."""
    outlines = outlines_of(first, second)
    rows = _stage_changes(first, second) if outlines is None else _choice_changes(first, second, *outlines)
    both = first.priced_by and second.priced_by
    pricing = [_pricing(plan.priced_by) for plan in (first, second) if both] or [{}, {}]
    of_prices = [(what, text, pricing[1][what]) for what, text in pricing[0].items()]
    trained = [row for row in size_changes(first, second) or () if row[0] in TRAINING]
    corrections = ("correction", _correction(first), _correction(second))
    yield from (row for row in (*rows, *trained, *of_prices, corrections) if row[1] != row[2])


def _choice_changes(first: Plan, second: Plan, own: Outline, other: Outline) -> Iterator[tuple[str, str, str]]:
    for what, text in _OF_OUTLINES.items():
        if own.choices[what] != other.choices[what]:
            yield what, text(own), text(other)
    if (own.pipeline, own.chunks) == (other.pipeline, other.chunks):
        blocks = [grouped(list(map(str, outline.blocks))) for outline in (own, other)]
        yield _BLOCKS, blocks[0], blocks[1]
    hosts = [", ".join(dict.fromkeys(name_ranges(stage.hosts) for stage in plan.stages)) for plan in (first, second)]
    if list(first.devices_of_hosts) != list(second.devices_of_hosts):
        yield _ORDER, hosts[0], hosts[1]


def _stage_changes(first: Plan, second: Plan) -> Iterator[tuple[str, str, str]]:
    if first.num_micro_batches != second.num_micro_batches:
        yield "micro-batch", _micro_batch_text(first), _micro_batch_text(second)
    if _chunks_differ(first, second):
        first_text, other = (f"{plan.schedule}: {stages_text(plan)}" for plan in (first, second))
        yield "schedule", first_text, other
    else:
        yield "schedule", first.schedule, second.schedule
        if len(first.stages) != len(second.stages):
            yield "stages", stages_text(first), stages_text(second)
    for what in (*_shape_changes(first, second), *_WITH_LAYERS):
        of, text = _OF_STAGES[what]
        if _differ(first, second, of):
            yield what, text(first.stages), text(second.stages)


def between(first: Plan, second: Plan, names: Collection[str]) -> Plan:
    """Returns the first plan with those of its differences that `names` has changed to the second plan's values.

    Raises ValueError if devices, blocks or the batch can't be divided by both plans' choices together.
    """

    def of(what: str) -> Plan:
        return second if what in names else first

    outlines = outlines_of(first, second)
    if outlines is None:
        count, schedule = of("micro-batch").num_micro_batches, of("schedule").schedule
        stages = list(_stages(first, second, of))
    else:
        outline = _outline_between(*outlines, names)
        count, schedule = outline.num_micro_batches, outline.schedule
        stages = outline.stages(of(_ORDER).devices_of_hosts)
    return dataclasses.replace(
        first,
        model=_model_between(first, second, names),
        num_micro_batches=count,
        schedule=schedule,
        stages=tuple(stages),
        priced_by=_priced_between(first.priced_by, second.priced_by, names),
        correction=of("correction").correction,
    )


def size_changes(first: Plan, second: Plan) -> list[tuple[str, str, str]] | None:
    """Returns the sizes in which the models of two plans differ, each with both values; None where the models aren't
    texts of sizes of one kind.
    """
    (kind, own), (other_kind, other) = _sizes(first.model), _sizes(second.model)
    if not own or not other or kind != other_kind:
        return None
    names = sorted(own.keys() | other.keys())
    rows = [(name, own.get(name, _USUAL), other.get(name, _USUAL)) for name in names]
    return [row for row in rows if row[1] != row[2]]


def _sizes(model: str) -> tuple[str, dict[str, str]]:
    """Returns the kind in the text of a model, such as a transformer, and its sizes by their names; none for others."""
    kind, colon, sizes = model.partition(":")
    if not colon or "=" not in sizes:
        return kind, {}
    return kind, {name: value for name, _, value in (part.partition("=") for part in sizes.split(","))}


def _model_between(first: Plan, second: Plan, names: Collection[str]) -> str:
    changed = {name: value for name, _, value in size_changes(first, second) or () if name in names}
    if not changed:
        return first.model
    kind, sizes = _sizes(first.model)
    kept = {name: value for name, value in (sizes | changed).items() if value != _USUAL}
    return f"{kind}:" + ",".join(f"{name}={value}" for name, value in kept.items())


def outlines_of(first: Plan, second: Plan) -> tuple[Outline, Outline] | None:
    """Returns both plans as their users set them; None where their stages can't be said so, or they have other hosts.

    A plan that its outline doesn't make again has stages that differ in more than it can say.
    """
    if first.devices_of_hosts != second.devices_of_hosts:
        return None
    try:
        outlines = Outline.of(first), Outline.of(second)
        for plan, outline in zip((first, second), outlines, strict=True):
            if list(map(_outlined, outline.stages(plan.devices_of_hosts))) != list(map(_outlined, plan.stages)):
                return None
    except (NoPlanError, ValueError):
        return None
    alike = outlines[0].batch == outlines[1].batch and outlines[0].num_blocks == outlines[1].num_blocks
    return outlines if alike else None


def _outlined(stage: StagePlan) -> tuple[object, ...]:
    degrees = (getattr(stage, name) for name in DEGREES)
    mesh = stage.layers, stage.submesh, tuple(stage.logical_mesh), stage.hosts
    return *mesh, _options(stage), stage.remat, stage.remat_share, stage.zero, stage.offloaded, *degrees


def _outline_between(first: Outline, second: Outline, names: Collection[str]) -> Outline:
    own, other = first.choices, second.choices
    outline = first.with_choices({name: (other if name in names else own)[name] for name in own if name != _BLOCKS})
    count = len(outline.blocks)
    if len(second.blocks) == count and (_BLOCKS in names or len(first.blocks) != count):
        outline = dataclasses.replace(outline, blocks=second.blocks)
    return outline


def _pricing(by: PricedBy | None) -> dict[str, str]:
    """Returns what a plan's seconds come from, by the names of the choices."""
    if by is None:
        return {}
    runtime, _, overlap = by.runtime.partition("+")
    return {
        "runtime": runtime, "overlap": overlap or "the runtime's", "attention": by.attention or "the runtime's",
        "sequence parallel": "yes" if by.sequence_parallel else "no",
        **{f"{name} model" if name != "calibration" else name: getattr(by, name) or "none" for name in _MODELS},
    }  # fmt: skip


def _priced_between(first: PricedBy | None, second: PricedBy | None, names: Collection[str]) -> PricedBy | None:
    """Returns the first plan's pricing with some choices of the second's; of one that isn't known, the other's."""
    if first is None or second is None:
        return first or second
    of = {what: second if what in names else first for what in _pricing(first)}
    runtime, overlap = of["runtime"].runtime.partition("+")[0], of["overlap"].runtime.partition("+")[2]
    return dataclasses.replace(
        first, runtime=f"{runtime}+{overlap}" if overlap else runtime, attention=of["attention"].attention,
        latency=of["latency model"].latency, communication=of["communication model"].communication,
        calibration=of["calibration"].calibration, sequence_parallel=of["sequence parallel"].sequence_parallel,
    )  # fmt: skip


def _chunks_differ(first: Plan, second: Plan) -> bool:
    """Whether submeshes have other numbers of stages in the two plans: then the stages go with the schedule."""
    return schedule_form(first.schedule).chunks != schedule_form(second.schedule).chunks


def _stages(first: Plan, second: Plan, of: Callable[[str], Plan]) -> Iterator[StagePlan]:
    if _chunks_differ(first, second):
        shapes: Sequence[StagePlan] = of("schedule").stages
    elif len(first.stages) != len(second.stages):
        shapes = of("stages").stages
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
    if len(first.stages) != len(second.stages) or _chunks_differ(first, second):
        return ()
    same = [stage.submesh for stage in first.stages] == [stage.submesh for stage in second.stages]
    return ("layers", "logical meshes", "hosts") if same else ("layers", "submeshes")


def _again_text(outline: Outline) -> str:
    """Returns what is computed again, in the usual words, each run of alike blocks with how many they are."""
    of_blocks = [
        again_text(remat, outline.remat_share if remat == "layer" else 1.0)
        for remat, count in zip(outline.remat, outline.blocks, strict=True)
        for _ in range(count)
    ]
    alike = [(text, len(list(run))) for text, run in itertools.groupby(of_blocks)]
    return alike[0][0] if len(alike) == 1 else ", ".join(f"{text} of {count}" for text, count in alike)


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


def _micro_batch_text(plan: Plan) -> str:
    """Returns the samples of a replica's micro-batch, as far as they are known, and the number of micro-batches."""
    count, replicas = plan.num_micro_batches, [stage.data_parallel // stage.context_parallel for stage in plan.stages]
    samples = "" if plan.batch is None else units.span([plan.batch / count / own for own in replicas], units.number)
    return f"{samples} x {count}".strip()


_Stages = Sequence[StagePlan]


def _degrees_text(name: str, of: Sequence[StagePlan | Outline]) -> str:
    none = "all" if name == "shard" else "1"
    return grouped([DEGREE_TEXTS[name](stage) or none for stage in of])


def _degree_text(name: str) -> Callable[[Outline], str]:
    return lambda outline: _degrees_text(name, [outline])


_OF_STAGES: dict[str, tuple[Callable[[StagePlan], Any], Callable[[_Stages], str]]] = {
    "layers": (lambda stage: stage.layers, lambda stages: grouped(list(map(_layers_text, stages)))),
    "submeshes": (lambda stage: stage.submesh, lambda stages: grouped(list(map(_devices_text, stages)))),
    "logical meshes": (
        lambda stage: stage.logical_mesh, lambda stages: grouped([mesh_text(stage.logical_mesh) for stage in stages]),
    ),
    "hosts": (lambda stage: stage.hosts, lambda stages: grouped([name_ranges(stage.hosts) for stage in stages])),
    "recompute": (recomputed_text, lambda stages: grouped(list(map(recomputed_text, stages)))),
    "ZeRO": (lambda stage: stage.zero, lambda stages: grouped([ZERO_NAMES[stage.zero] for stage in stages])),
    "offload": (lambda stage: stage.offloaded, lambda stages: grouped([stage.offloaded.text for stage in stages])),
    "auto-sharding": (_options, lambda stages: grouped(list(map(_options_text, stages)))),
    **{name: (text, functools.partial(_degrees_text, name)) for name, text in DEGREE_TEXTS.items()},
}  # fmt: skip
"""For each thing in which stages may differ its value, and text for a row of stages."""

_BLOCKS = "blocks of stages"
_ORDER = "order of hosts"
_OF_OUTLINES: dict[str, Callable[[Outline], str]] = {
    "tensor": lambda outline: str(outline.tensor_parallel),
    "context": _degree_text("context"),
    "expert": _degree_text("expert"),
    "pipeline": lambda outline: str(outline.pipeline),
    "schedule": lambda outline: outline.schedule,
    "micro-batch": lambda outline: f"{outline.micro_batch} x {outline.num_micro_batches}",
    "recompute": _again_text,
    "ZeRO": lambda outline: ZERO_NAMES[outline.zero],
    "shard": _degree_text("shard"),
    "offload": lambda outline: outline.offload.text if outline.offload.any else "none",
}
"""The choices of `Outline.choices`, but the blocks of stages, each as text, in the order in which they are listed."""
