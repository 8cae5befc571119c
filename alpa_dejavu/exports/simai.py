"""A plan as SimAI's workload: a text with a header, and a line of 12 columns for each layer of one pipeline stage.

SimAI runs one stage, with its layers once for each micro-batch, and adds the pipeline's bubble by a formula: stages
must be alike. It forms groups by itself: collectives of passes are of tensor- or expert-parallel devices, those of
weights of data-parallel ones, or of those among them that have the same experts.

References:
    Wang et al., SimAI: Unifying Architecture Design and Performance Tuning for Large-Scale LLM Training, NSDI 2025;
    github.com/aliyun/SimAI, whose `Workload.cc` reads the text, and github.com/aliyun/aicb, which writes such texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from alpa_dejavu._util import units
from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.exports.stage_work import StageWork, WorkPart, stage_works
from alpa_dejavu.problem import (
    CONTEXT,
    DATA,
    EXPERT,
    EXPERT_COPIES,
    EXPERT_REPLICATED,
    EXPERT_SHARDED,
    EXPERT_TENSOR,
    REPLICATED,
    SHARDED,
    TENSOR,
    Plan,
)
from alpa_dejavu.simulation.plan_times import plan_times

_NS_PER_S = 1e9
_NAMES = {
    "all_reduce": "ALLREDUCE", "all_gather": "ALLGATHER", "reduce_scatter": "REDUCESCATTER", "all_to_all": "ALLTOALL",
}  # fmt: skip
_IN_PASSES = {TENSOR: "", EXPERT: "_EP"}
_ONCE = {DATA: "", EXPERT_REPLICATED: "_DP_EP"}
_ENDS = {**_IN_PASSES, **_ONCE}
"""What the names of collectives end in, by the axis whose groups they are of."""
_WHOSE = {
    DATA: "data-parallel", EXPERT_REPLICATED: "data-parallel", CONTEXT: "context-parallel", SHARDED: "sharded",
    REPLICATED: "replicated", EXPERT_TENSOR: "expert-tensor-parallel", EXPERT_SHARDED: "expert-sharded",
    EXPERT_COPIES: "expert-replicated",
}  # fmt: skip
_MOST_BYTES = 2**31 - 1
"""The bytes between stages are read as a whole number of 32 bits."""
_PROCESS_NS = 100
_NOTHING = (1, "NONE", 0)
"""The columns of a pass that does nothing."""


def simai_files(plan: Plan, costs: StageCostModel) -> dict[str, str | bytes]:
    """Returns SimAI's workload of a step, by the name of its file: the layers of the stage that takes longest, with
    whole backward passes as input gradients. Raises ValueError if stages aren't alike, or do what SimAI's columns can't
    say; says which, and what would do.
    """
    _check_alike(plan)
    times = plan_times(plan)
    works = stage_works(plan, times, costs)
    slowest = max(range(len(times)), key=lambda n: times[n].forward_s + times[n].backward_s)
    work = works[slowest]
    _check_groups(work, slowest)
    lines = [*_once(work), *(line for _ in range(plan.num_micro_batches) for line in _layers(work))]
    cut = max((costs.interstage.bytes.forward_bytes[stage.layers[0]] for stage in plan.stages[1:]), default=0.0)
    header = (
        f"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: {work.config.tensor_parallel} "
        f"ep: {work.config.expert_parallel} pp: {len(plan.stages)} vpp: 1 ga: {plan.num_micro_batches} "
        f"all_gpus: {plan.num_devices} checkpoints: 0 checkpoint_initiates: 0 "
        f"pp_comm: {_between(cut / plan.stages[0].submesh.num_devices)}"
    )
    return {"workload.txt": "\n".join([header, str(len(lines)), *lines]) + "\n"}


def _check_alike(plan: Plan) -> None:
    """Raises ValueError unless all stages of a plan are alike, under a schedule that SimAI's formula is of."""
    first = plan.stages[0]
    if plan.schedule not in ("1f1b", "gpipe"):
        raise ValueError(f"schedule is {plan.schedule!r}, but must be one of 1f1b, gpipe for simai; plan for that")
    for n, stage in enumerate(plan.stages):
        if stage.num_layers != first.num_layers:
            raise ValueError(
                f"stage {n} has {stage.num_layers} layers, but must have {first.num_layers} for simai, as many as "
                "stage 0: it runs one stage for all; export to chakra, or cut the layers evenly with --slicer uniform"
            )
        for name in ("logical_mesh", "context_parallel", "expert_parallel", "expert_tensor"):
            if (own := getattr(stage, name)) != (wanted := getattr(first, name)):
                raise ValueError(
                    f"stage {n}'s {name} is {own}, but must be stage 0's, {wanted}, for simai: it runs one stage for "
                    "all; export to chakra"
                )
        if stage.offloaded.any:
            raise ValueError(f"stage {n} offloads, but mustn't for simai, which has no copies; export to chakra")


def _check_groups(work: StageWork, stage: int) -> None:
    """Raises ValueError if a stage has collectives of devices that SimAI has no groups of."""
    for phase, allowed in (("forward", _IN_PASSES), ("backward", _IN_PASSES), ("synchronise", _ENDS)):
        for part in work.parts[phase]:
            if part.collective and part.axis not in allowed:
                among = f"{work.config.ways(part.axis)} {_WHOSE[part.axis]} devices"
                raise ValueError(
                    f"stage {stage} has {part.name!r} among {among}, but must have none for simai, whose passes have "
                    "tensor- and expert-parallel groups only; export to chakra"
                    + (", or plan with ZeRO 0 or 2" if work.config.zero == 3 else "")
                )


def _layers(work: StageWork) -> Iterator[str]:
    """Yields the lines of a stage's layers: one for each, and more where it has several collectives."""
    forward, backward = (_by_layer(work.parts[name]) for name in ("forward", "backward"))
    none: list[WorkPart] = []
    for ahead, back in itertools.zip_longest(forward, reversed(backward), fillvalue=none):
        name = "_".join((ahead or back)[0].name.split()[1:])
        columns = itertools.zip_longest(_columns(ahead), _columns(back), fillvalue=_NOTHING)
        for n, (sent, answered) in enumerate(columns):
            yield _line(name if n == 0 else f"{name}_{n}", sent, answered, _NOTHING)


def _by_layer(parts: Iterable[WorkPart]) -> list[list[WorkPart]]:
    """Returns a pass's parts, those of each layer as a list that begins with its computing."""
    layers: list[list[WorkPart]] = []
    for part in parts:
        if not part.collective or not layers:
            layers.append([])
        layers[-1].append(part)
    return layers


def _columns(parts: Sequence[WorkPart]) -> Iterator[tuple[int, str, int]]:
    """Yields for computing with the collectives behind it the columns of one line after the other."""
    for n, sent in enumerate([_sent(part) for part in parts[1:]] or [("NONE", 0)] if parts else []):
        yield max(1, round(parts[0].seconds * _NS_PER_S)) if n == 0 else 1, *sent


def _sent(part: WorkPart) -> tuple[str, int]:
    return _NAMES[part.collective] + _ENDS[part.axis], max(1, round(part.whole_bytes))


def _once(work: StageWork) -> Iterator[str]:
    """Yields the lines of what comes once a step: the synchronisation of gradients, and the optimizer's update."""
    for n, part in enumerate(work.parts["synchronise"]):
        if part.collective:
            own = 1, *_sent(part)
            yield _line(f"gradients_{n}", _NOTHING, *((_NOTHING, own) if part.axis in _ONCE else (own, _NOTHING)))
    seconds = sum(part.seconds for part in work.parts["update"])
    yield _line("optimizer", _NOTHING, (max(1, round(seconds * _NS_PER_S)), "NONE", 0), _NOTHING)


def _line(name: str, *passes: tuple[int, str, int]) -> str:
    return "\t".join(map(str, (name, -1, *itertools.chain(*passes), _PROCESS_NS)))


def _between(num_bytes: float) -> int:
    if num_bytes > _MOST_BYTES:
        raise ValueError(
            f"a device sends {units.size(num_bytes)} to the next stage, but must send at most "
            f"{units.size(_MOST_BYTES)} for simai; take smaller micro-batches"
        )
    return max(1, round(num_bytes)) if num_bytes else 0
