"""Training frameworks that can run a plan, and what keeps the others from it.

`RUNTIMES` has limits alone. What a framework adds to seconds is in costs/runtimes.json, and how it runs a transformer's
kernels in `alpa_dejavu.sharding.transformers.EXECUTIONS`: a framework may lack either, and is priced as Alpa then.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import final

from alpa_dejavu._util import units
from alpa_dejavu.layers.models import Transformer, is_marked, transformer_size
from alpa_dejavu.plans.outline import DEGREES
from alpa_dejavu.plans.stage_rows import recomputed_text, zero_name, zero_text
from alpa_dejavu.problem import ANY_CUTS, OFFLOADED, Cuts, MeshConfig, Offload, Plan, StagePlan
from alpa_dejavu.problem.limits import MOST_LAYERS
from alpa_dejavu.problem.run import ALPA_SCHEDULES, schedule_form
from alpa_dejavu.schedules import kind_name


@final
@dataclasses.dataclass(frozen=True)
class Runtime:
    """A training framework, as far as it limits which plans it can run."""

    schedules: tuple[str, ...] = ("1f1b",)  # the names of the schedules that it has, as far as its repository says
    compiled: bool = False  # whether it compiles layers or attention, so that no schedule splits backward passes
    unlike_submeshes: bool = False  # whether stages may have unlike numbers of devices, logical meshes or offloads
    unlike_remat: bool = True  # whether some stages may compute activations again and others not
    unlike_zero: bool = False  # whether stages may have unlike ZeRO levels
    cuts: Cuts = ANY_CUTS  # where blocks of a transformer may be cut into stages
    zero: tuple[int, ...] = (0, 2, 3)  # levels under a pipeline; a plan of one stage may have any
    tensor_parallel: bool = True  # whether devices may divide the operators of a layer
    offload: tuple[tuple[str, ...], ...] = ()  # sets of tensors that it can offload together to hosts' memory
    offload_parts: tuple[int, ...] = ()  # the ZeRO levels at which a part of the optimizer's state may be offloaded
    offload_in_pipeline: bool = True  # whether it can do so where there are several stages
    drives: bool = False  # whether it can offload them to NVMe drives, too
    streams: bool = True  # whether its devices communicate while they compute
    in_pieces: bool = False  # whether its files can say that products are cut in pieces, beside which collectives hide
    whole_rounds: bool = False  # whether the number of micro-batches must be a multiple of the number of stages
    power_of_two: bool = False  # whether the number of stages must be a power of two
    schedules_alone: tuple[str, ...] = ()  # for one stage only: an order in which gradients are added up
    degrees: tuple[str, ...] = ()  # which of `DEGREES` its files can say
    # Degrees whose devices always share parameters among them, and the ZeRO levels at which they can.
    sharing: tuple[str, ...] = ()
    apart: bool = False  # whether these are axes of their own, else devices may be of several
    sharing_zero: tuple[int, ...] = (2, 3)
    hybrid_zero: tuple[int, ...] = (2, 3)  # the ZeRO levels at which groups of devices may share, each group the whole
    whole_experts: bool = False  # whether devices that divide experts among them have each expert whole
    context_in_pipeline: bool = True
    remat: tuple[str, ...] = ("none", "layer")  # what its files can say to be computed again
    muon_whole: bool = False  # whether Muon goes without ZeRO 3, groups of devices that share, and offload
    remat_of_some: bool = False  # whether they can say that only some blocks of each stage are
    # The values that fields of a transformer by which it is trained have in its files; those left out: the usual ones.
    trains: Mapping[str, Collection[object]] = dataclasses.field(default_factory=dict)
    # Kinds of transformers that its files can say, each by the values that some of `Transformer`'s fields have in it;
    # empty: any.
    models: Sequence[Mapping[str, Sequence[object]]] = ()
    lacks: str = ""  # the property of `Transformer` with those fields, and their values, that no file of it can say
    says: tuple[str, ...] = ()  # fields of these that its files can say nevertheless

    def has(self, schedule: str) -> bool:
        """Returns whether it has the schedule of a name, or of its kind; ValueError if there is none of that name."""
        return kind_name(schedule) in self.schedules

    def why_no_schedule(self, schedule: str) -> str:
        """Returns why it hasn't a schedule; empty if it has."""
        if self.has(schedule):
            return ""
        split = self.compiled and schedule_form(schedule).splits
        return f"no {schedule} there{', as torch.compile goes with no split backward passes' * split}"

    def zero_of(self, num_stages: int) -> tuple[int, ...]:
        """Returns the ZeRO levels that the stages of a plan of so many stages may have."""
        return self.zero if num_stages > 1 else (0, 2, 3)

    def why_not_trained(self, model: str) -> Hindrance | None:
        """Returns why its files can't say how a model of a name is trained, and what would do; None if they can."""
        sizes = transformer_size(model)
        if sizes is None:
            return None
        for field, option in _TRAINING.items():
            value = getattr(sizes, field)
            if value not in self.trains.get(field, _USUAL[field]):
                blocks = units.counted(sizes.num_blocks, "block")
                words = {
                    "train_last": f"only the last {value} of {blocks} train", "lora": "adapters alone are trained",
                }.get(field, f"{field} is {value!r}")  # fmt: skip
                return Hindrance(f"its files can't say that {words}", f"plan without {option}")
        return None

    def has_muon(self, model: Transformer | None, stage: MeshConfig | StagePlan) -> bool:
        """Returns whether a stage's division goes with Muon, if a model is trained by it: it wants whole matrices."""
        if model is None or model.optimizer != "muon" or not self.muon_whole:
            return True
        offload = stage.offloaded if isinstance(stage, StagePlan) else stage.offload
        return stage.zero < 3 and not stage.sharded and not offload.any

    def why_not_divided(self, stage: MeshConfig | StagePlan, num_stages: int) -> str:
        """Returns why its files can't say how one of so many stages is divided and computed again; empty if they can.

        >>> RUNTIMES["deepspeed"].why_not_divided(MeshConfig((8, 1), 8, 1, expert_parallel=4), 1)
        'no expert parallelism in its files'
        """
        data, *others = stage.logical_mesh if isinstance(stage, StagePlan) else stage.shape
        degrees = {name: getattr(stage, name) for name in DEGREES}
        for name, value in degrees.items():
            if value != DEGREES[name] and name not in self.degrees:
                return f"no {_DEGREE_NAMES[name]} in its files"
        if stage.remat not in self.remat or (stage.remat_share < 1 and not self.remat_of_some):
            return f"no 'recompute {recomputed_text(stage)}' in its files"
        if num_stages > 1 and degrees["context_parallel"] > 1 and not self.context_in_pipeline:
            return "no context parallelism in a pipeline there"
        tensor = math.prod(others)
        each_expert = degrees["expert_tensor"] or tensor
        replicas = {**degrees, "expert_parallel": max(degrees["expert_parallel"] * each_expert // tensor, 1)}
        shared = [replicas[name] for name in self.sharing]
        together = math.prod(shared) if self.apart else math.lcm(*shared)
        if together > 1 and (stage.zero not in self.sharing_zero or (stage.sharded or data) % together):
            names = " and ".join(_DEGREE_NAMES[name] for name in self.sharing if replicas[name] > 1)
            levels = " or ".join(map(zero_name, self.sharing_zero))
            return (
                f"no {names} with {zero_text([stage])} there, but with {levels} over all data-parallel devices or in "
                f"groups of a multiple of {together}"
            )
        if stage.sharded and stage.zero not in self.hybrid_zero:
            return f"no {zero_text([stage])} there"
        own = 1 if stage.expert_parallel > 1 else tensor
        if self.whole_experts and each_expert != own:
            return f"no tensor {each_expert} within experts there, but {own}"
        return ""

    def why_not_written(self, model: Transformer) -> str:
        """Returns why its files can't say a transformer, by the kind that differs least from it; empty if they can."""
        for name, value in getattr(model, self.lacks).items() if self.lacks else ():
            if name not in self.says:
                return f"{name} is {value!r}, but must be left out"
        unlike: list[list[str]] = [
            [f"{name} is {value!r}, but must be {_either(values)}" for name, values in kind.items()
             if (value := getattr(model, name)) not in values]
            for kind in self.models
        ]  # fmt: skip
        least = min(unlike, key=len, default=list[str]())
        return least[0] if least else ""

    def offloads(self, offload: Offload, zero: int) -> bool:
        """Returns whether stages can offload such shares of what they keep at a ZeRO level."""
        if not offload.any:
            return True
        kinds = tuple(kind for kind, share in zip(OFFLOADED, offload.shares, strict=True) if share)
        whole = all(share in (0, 1) for share in offload.shares[1:])
        parts = offload.optimizer in (0, 1) or zero in self.offload_parts
        return kinds in self.offload and whole and parts and (self.drives or offload.place == "cpu")


def _either(values: Sequence[object]) -> str:
    words = ("left out" if value == "" else repr(value) for value in values)
    return "above 0" if isinstance(values, range) else " or ".join(words)


_TRAINING = {
    "train_last": "--train-last", "lora": "--lora", "optimizer": "--optimizer", "gather": "gather in --precision",
}  # fmt: skip
"""The fields of a transformer that say how it is trained, with the options that set them."""
_USUAL: Mapping[str, tuple[object, ...]] = {
    "train_last": (0,), "lora": (0,), "optimizer": ("adamw", "adam"), "gather": ("",),
}  # fmt: skip
_PRECISIONS = ("bfloat16", "float16", "float32", "float8", "fp8-blockwise", "mxfp8", "nvfp4")
_MEGATRON = [
    {**feeds, **biases, **positions, "precision": _PRECISIONS}
    for feeds in (
        {"gated": (True,), "activation": ("silu",)}, {"gated": (False,), "activation": ("gelu", "relu2")},
    )
    for biases in ({"biases": ("none", "qkv")}, {"biases": ("all",), "num_experts": (0,)})
    for positions in (
        {"rotary_scaling": (1.0,)}, {"latent_rank": (0,), "rotary_scaling_kind": ("llama3",)},
        {"latent_rank": range(1, 10**9), "rotary_scaling_kind": ("yarn",)},
    )
]  # fmt: skip
"""The kinds of transformers that Megatron's arguments say."""
_HALF_OR_SINGLE = ("bfloat16", "float16", "float32")
_BY_MAXTEXT: Mapping[str, Sequence[object]] = {
    "gated": (True,), "rotary": (True,), "rms_norm": (True,), "precision": ("bfloat16", "float32", "float8", "mxfp8"),
}  # fmt: skip
_LLAMA_IN_MAXTEXT: Mapping[str, Sequence[object]] = {
    **_BY_MAXTEXT, "latent_rank": (0,), "dense_blocks": (0,), "shared_feed_forward": (0,), "router_bias": (False,),
    "predicted": (0,), "rotary_scaling": (1.0, 8.0), "rotary_scaling_kind": ("llama3",),
}  # fmt: skip
RUNTIMES = {
    "alpa": Runtime(
        schedules=ALPA_SCHEDULES,
        unlike_submeshes=True,
        unlike_zero=True,
        streams=False,
        trains={"optimizer": ("adamw", "adam", "sgd", "adafactor"), "train_last": range(MOST_LAYERS)},
        lacks="untraced",
    ),
    "megatron": Runtime(
        in_pieces=True,
        muon_whole=True,
        remat_of_some=True,
        degrees=tuple(DEGREES),
        remat=("none", "selective", "layer"),
        schedules=("1f1b", "interleaved"),
        unlike_remat=False,
        zero=(0, 2),
        offload=(OFFLOADED[:1],),
        offload_parts=(2,),
        trains={"optimizer": ("adamw", "adam", "sgd", "muon"), "gather": ("", "fp8")},
        lacks="unusual",
        says=(
            "window", "global_every", "activation", "experts_every", "sinks", "rotated", "positions", "predicted",
            "rotary_scaling_kind", "router_bias",
        ),
        models=_MEGATRON,
    ),
    "deepspeed": Runtime(
        degrees=("context_parallel", "sharded"),
        context_in_pipeline=False,
        hybrid_zero=(3,),
        trains={"optimizer": ("adamw", "adam", "sgd", "adafactor", "lion", "muon")},
        models=({"precision": _HALF_OR_SINGLE},),
        zero=(0, 2),
        tensor_parallel=False,
        offload=(OFFLOADED[:2], OFFLOADED[:3], OFFLOADED, OFFLOADED[3:], (*OFFLOADED[:2], *OFFLOADED[3:])),
        offload_in_pipeline=False,
        drives=True,
    ),
    "galvatron": Runtime(
        remat_of_some=True,
        degrees=("context_parallel", "expert_parallel", "expert_tensor"),
        schedules=("1f1b", "gpipe"),
        cuts=Cuts(lone_ends=False),
        power_of_two=True,
        models=({"precision": _HALF_OR_SINGLE},),
    ),
    "torchtitan": Runtime(
        degrees=tuple(DEGREES),
        sharing=("context_parallel", "expert_parallel"),
        whole_experts=True,
        remat=("none", "selective", "layer"),
        schedules=("1f1b", "gpipe", "interleaved"),
        compiled=True,
        unlike_remat=False,
        offload=(OFFLOADED[:3],),
        trains={"gather": ("", "fp8")},  # jobs of earlier releases may gather in 8 bits
        models=({"precision": ("bfloat16", "float32", "float8", "mxfp8"), "gather": ("",)},),
    ),
    "maxtext": Runtime(
        degrees=("context_parallel", "expert_parallel", "sharded"),
        sharing=("context_parallel", "expert_parallel"),
        apart=True,
        sharing_zero=(3,),
        hybrid_zero=(3,),
        schedules=("1f1b", "gpipe"),
        unlike_remat=False,
        cuts=Cuts(even=True),
        whole_rounds=True,
        offload=(OFFLOADED[:1],),
        schedules_alone=("1f1b",),
        lacks="unusual",
        says=("router_bias", "predicted", "rotary_scaling_kind"),
        trains={"optimizer": ("adamw", "adam", "sgd", "muon")},
        models=(
            {**_LLAMA_IN_MAXTEXT, "biases": ("none", "qkv"), "qk_norm": (False,), "num_experts": (0,)},
            {**_LLAMA_IN_MAXTEXT, "biases": ("none",)},
            *({
                **_BY_MAXTEXT, "latent_rank": range(1, 10**9), "num_experts": range(1, 10**9), "biases": ("none",),
                "qk_norm": (False,), **scaling,
            } for scaling in ({"rotary_scaling": (1.0,)}, {"rotary_scaling_kind": ("yarn",)})),
            {
                **_BY_MAXTEXT, "gated": (False,), "rotary": (False,), "rms_norm": (False,), "latent_rank": (0,),
                "biases": ("all",), "qk_norm": (False,), "num_experts": (0,), "predicted": (0,),
            },
        ),
    ),
}  # fmt: skip
"""By their names; as far as their documentation said in November 2026. ZeRO 2 is the optimizer's state and step."""
_ALIKE = {
    "nemo": RUNTIMES["megatron"],
    "fsdp": Runtime(degrees=("sharded",), tensor_parallel=False, remat=("none", "selective", "layer")),
}
"""Frameworks that no plan is written for, but that run transformers by their sizes."""


def runtimes_of(plan: Plan) -> dict[str, str]:
    """Returns for each training framework in a few words why it can't run a plan; empty for those that can.

    All but Alpa cut a model at the blocks of a transformer. No framework is said to run a plan of several unlike
    pipelines, or of another strategy that Alpa can't run.
    """
    first = {name: next(hindrances(plan, name, limits), None) for name, limits in RUNTIMES.items()}
    why = {name: "" if hindrance is None else hindrance.why for name, hindrance in first.items()}
    sizes = transformer_size(plan.model)
    blocks_alike = plan.layer_option == "manual" and (sizes is not None or not is_marked(plan.model))
    for name, reason in why.items():
        if not blocks_alike and name != "alpa":  # before reasons that another plan could remove
            why[name] = "its layers aren't the blocks of a transformer"
        elif not reason and sizes is not None:
            why[name] = RUNTIMES[name].why_not_written(sizes)
    return why


def runtimes_text(plan: Plan) -> str:
    """Returns as text which training frameworks can run a plan, and what keeps the others from it."""
    by_reason: dict[str, list[str]] = {"": []}
    for name, why in runtimes_of(plan).items():
        by_reason.setdefault(why, []).append(name)
    can = ", ".join(by_reason.pop("")) or "none"
    return "; ".join([can, *(f"not {', '.join(names)}: {why}" for why, names in by_reason.items())])


def limits_of(runtime: str) -> Runtime | None:
    """Returns the limits of a training framework by the name of a runtime profile; None where they aren't known."""
    name = runtime.partition("+")[0]
    return RUNTIMES.get(name) or _ALIKE.get(name)


def schedules_of(runtime: str) -> tuple[str, ...]:
    """Returns the names of the schedules that a training framework has; ValueError if it isn't known."""
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime is {runtime!r}, but must be one of {', '.join(map(repr, RUNTIMES))}")
    return RUNTIMES[runtime].schedules


def runtimes_with(schedule: str) -> tuple[str, ...]:
    """Returns the names of the training frameworks that have a schedule; ValueError if there is none of that name."""
    return tuple(name for name, limits in RUNTIMES.items() if limits.has(schedule))


def check_schedule_of(runtime: str, schedule: str) -> None:
    """Raises ValueError where a known training framework hasn't a schedule; it names those that it has."""
    if runtime in RUNTIMES and not RUNTIMES[runtime].has(schedule):
        has = ", ".join(schedules_of(runtime))
        raise ValueError(
            f"schedule is {schedule!r}, but must be one that {runtime} has: {has} "
            f"({RUNTIMES[runtime].why_no_schedule(schedule)}); give one of these, or leave the runtime out"
        )


_DEGREE_NAMES = {
    "context_parallel": "context parallelism", "expert_parallel": "expert parallelism",
    "expert_tensor": "tensor parallelism of its own within experts", "sharded": "ZeRO in groups",
}  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Hindrance:
    """A reason why a training framework can't run a plan: the rule that a stage breaks, and what would do instead."""

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why}; {self.remedy}"


def hindrances(plan: Plan, name: str, limits: Runtime) -> Iterator[Hindrance]:
    """Yields the reasons why a training framework of a name can't run a plan, by what it can run."""
    again = f"plan again with --for {name}"
    if lacking := limits.why_no_schedule(plan.schedule):
        yield Hindrance(lacking, f"plan with one of {', '.join(limits.schedules)}")
    divided = [n for n, stage in enumerate(plan.stages) if not stage.plain]
    other_reason = plan.schedule not in ALPA_SCHEDULES or plan.offloads or plan.streams or divided
    if not plan.runs_on_alpa and (plan.strategy or not other_reason):
        what = plan.strategy or "reduction servers"
        yield Hindrance(f"no {what} there", "plan by this package's own search, without reduction servers")
    if plan.streams and not limits.streams:
        yield Hindrance("no overlap of communication there", "plan with --overlap none")
    if untrained := limits.why_not_trained(plan.model):
        yield untrained
    sizes = transformer_size(plan.model)
    for n, stage in enumerate(plan.stages):
        if not limits.has_muon(sizes, stage):
            yield Hindrance(f"stage {n} has ZeRO 3, hybrid sharding or offload with Muon", again)
            break
        if reason := limits.why_not_divided(stage, len(plan.on_submeshes)):
            yield Hindrance(f"{f'stage {n}: ' if len(plan.stages) > 1 else ''}{reason}", again)
            break
    yield from _unlike(plan, limits, again)
    stages = len(plan.on_submeshes)
    if stages > 1 and plan.schedule in limits.schedules_alone:
        yield Hindrance(f"no {plan.schedule} in a pipeline there", again)
    if stages > 1 and plan.offloads and not limits.offload_in_pipeline:
        yield Hindrance("no offload in a pipeline there", "offload nothing, or plan for one stage")
    for n, stage in enumerate(plan.stages):
        if stage.zero not in limits.zero_of(stages):
            levels = " or ".join(map(zero_name, limits.zero_of(stages)))
            where = "in a pipeline" if stages > 1 else "there"
            yield Hindrance(f"stage {n} has {zero_name(stage.zero)} {where}", f"plan with {levels}")
        if not limits.tensor_parallel and math.prod(stage.logical_mesh[1:]) > 1:
            yield Hindrance(f"stage {n} is tensor parallel", again)
        yield from _offloads(n, stage, limits, again)
    if limits.whole_rounds and stages > 1 and plan.num_micro_batches % stages:
        yield Hindrance(f"{plan.num_micro_batches} micro-batches aren't whole rounds of {stages} stages", again)
    if limits.power_of_two and stages.bit_count() != 1:
        yield Hindrance(f"{stages} stages aren't a power of two", again)
    yield from _cut_elsewhere(plan, limits.cuts, again)


def _unlike(plan: Plan, limits: Runtime, again: str) -> Iterator[Hindrance]:
    first, told = plan.stages[0], set[str]()
    for n, stage in enumerate(plan.stages):
        meshes = [
            (on.submesh.num_devices, tuple(on.logical_mesh), on.offloaded, *(getattr(on, name) for name in DEGREES))
            for on in (first, stage)
        ]
        for allowed, unlike, what in (
            (limits.unlike_submeshes, meshes[0] != meshes[1], "meshes"),
            # The model's own remat is no choice of a plan: a stage of the head alone has none.
            (limits.unlike_remat, (first.remat, first.remat_share) != (stage.remat, stage.remat_share), "remat"),
            (limits.unlike_zero, first.zero != stage.zero, "ZeRO levels"),
        ):
            if unlike and not allowed and what not in told:
                told.add(what)
                yield Hindrance(f"stages 0 and {n} have unlike {what}", again)


def _offloads(n: int, stage: StagePlan, limits: Runtime, again: str) -> Iterator[Hindrance]:
    offload = stage.offloaded
    kinds = tuple(kind for kind, share in zip(OFFLOADED, offload.shares, strict=True) if share)
    lacking = [kind for kind in kinds if kind not in itertools.chain(*limits.offload)]
    if lacking:
        yield Hindrance(f"no offload of {lacking[0]} there", again)
    elif offload.any and offload.place == "nvme" and not limits.drives:
        yield Hindrance("no offload to nvme there", again)
    elif kinds and kinds not in limits.offload:
        yield Hindrance(f"no offload of {' and '.join(kinds)} without other kinds there", again)
    elif not limits.offloads(offload, stage.zero):
        what = next(kind for kind, share in zip(OFFLOADED, offload.shares, strict=True) if 0 < share < 1)
        yield Hindrance(f"no part of {what} alone is offloaded there", f"stage {n}: offload all of it, or nothing")


def _cut_elsewhere(plan: Plan, cuts: Cuts, again: str) -> Iterator[Hindrance]:
    """Yields the stages whose layers aren't cut as a framework cuts blocks, where these are marked."""
    cuts = dataclasses.replace(cuts, ends=1 if plan.layer_option == "manual" else 0)
    allowed = cuts.allowed(plan.num_layers, len(plan.stages))
    for n, stage in enumerate(plan.stages):
        if not allowed[stage.layers]:
            rule = "equally many blocks in each stage" if cuts.even else "blocks in each stage"
            yield Hindrance(f"stage {n} has layers {stage.layers[0]} to {stage.layers[1]}, not {rule}", again)
