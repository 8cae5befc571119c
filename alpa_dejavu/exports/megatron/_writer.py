"""A plan as a script that runs Megatron-LM's `pretrain_gpt.py`."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from alpa_dejavu.costs.overlap import NO_OVERLAP
from alpa_dejavu.costs.runtime import runtime_names, runtime_profile
from alpa_dejavu.exports._outline import commented, heading
from alpa_dejavu.exports._settings import short
from alpa_dejavu.exports._target import Files
from alpa_dejavu.exports.megatron._sizes import size_arguments
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import DEGREES, Outline
from alpa_dejavu.problem import Plan

RELEASE = "Megatron-Core 0.19"
DEGREE_ARGUMENTS: Final = {
    "context_parallel": "context-parallel-size", "expert_parallel": "expert-model-parallel-size",
    "expert_tensor": "expert-tensor-parallel-size",
}  # fmt: skip
INSTANCES: Final = "num-distributed-optimizer-instances"
LAYOUT: Final = "pipeline-model-parallel-layout"
_EACH_HOST: Final = (
    "Run this on each host, with NODE_RANK counting hosts in the order above and MASTER_ADDR naming the",
    "first one. Data, tokenizer and learning rate are yours: the mock data below is for a trial.",
)
_WHERE: Final = (
    '--node_rank "${NODE_RANK:-0}" --master_addr "${MASTER_ADDR:-localhost}" --master_port "${MASTER_PORT:-6000}"'
)


def megatron_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns the script `run_megatron.sh`, with Megatron-LM's arguments for a plan and for the sizes of its model."""
    hosts = len({host for stage in plan.stages for host in stage.hosts})
    text = "#!/usr/bin/env bash\n" + commented(heading(plan, outline, RELEASE)) + "set -euo pipefail\n\n"
    text += commented(_EACH_HOST)
    if outline.zero == 3:
        text += "unset CUDA_DEVICE_MAX_CONNECTIONS  # as Megatron-FSDP wants it\n\n"
    elif outline.tensor_parallel > 1:
        text += "export CUDA_DEVICE_MAX_CONNECTIONS=1  # as tensor parallelism wants it before Blackwell\n\n"
    processes = {"nnodes": str(hosts), "nproc_per_node": str(plan.num_devices // hosts)}
    own = {"train-iters": "100", "lr": "1e-4", "mock-data": None, "tokenizer-type": "NullTokenizer"}
    text += _array("DISTRIBUTED", processes, f"  {_WHERE}\n") + "\n"
    text += commented(["The model, by the sizes that were planned for."]) + _array("MODEL", size_arguments(sizes))
    rows = _plan_rows(outline, sizes, plan)
    arguments = {name: value for _, row in rows for name, value in row.items()}
    text += "\n" + commented(why for why, _ in rows if why) + _array("PLAN", arguments)
    text += "\n" + commented(["Yours: what follows trains on made-up tokens."]) + _array("OWN", own)
    text += '\ntorchrun "${DISTRIBUTED[@]}" pretrain_gpt.py "${MODEL[@]}" "${PLAN[@]}" "${OWN[@]}" "$@"\n'
    return {"run_megatron.sh": text}


def _hidden(plan: Plan) -> str:
    """Returns what a plan was priced with that devices do while they compute, as a kind of overlap."""
    if plan.priced_by is None or plan.priced_by.runtime.partition("+")[0] not in runtime_names():
        return "streams" if plan.streams else NO_OVERLAP.kind
    return runtime_profile(plan.priced_by.runtime).overlap.kind


def _plan_rows(outline: Outline, sizes: Transformer, plan: Plan) -> list[tuple[str, dict[str, str | None]]]:
    """Returns Megatron's arguments for a plan in rows: what they stand for, and the arguments by name; None: without a
    value.
    """
    again, remat, hidden = max(outline.again), outline.remat[0], _hidden(plan)
    divided = plan.priced_by is None or plan.priced_by.sequence_parallel
    if outline.remat_share < 1 and outline.again != tuple(min(again, number) for number in outline.blocks):
        raise ValueError(
            f"stages compute {', '.join(map(str, outline.again))} blocks again, but Megatron does with the same number "
            "in each; plan again with --remat"
        )
    offloads, sharded, muon = outline.offload.any, outline.zero == 3, sizes.optimizer == "muon"
    if muon and (sharded or offloads or outline.sharded):
        raise ValueError(
            "optimizer is 'muon' with ZeRO 3, hybrid sharding or offload, which Megatron hasn't; plan with ZeRO 0 or 2 "
            "and without offload"
        )
    hides, shares = hidden != NO_OVERLAP.kind, bool(outline.zero or offloads) and not muon
    rows: Sequence[tuple[object, str, dict[str, str | None]]] = (
        (True, "The plan. Sizes of the tensor and pipeline parallel groups: its logical mesh and its stages. Batch "
         "sizes: its batch over its micro-batches and replicas.", {
            "tensor-model-parallel-size": str(outline.tensor_parallel),
            "pipeline-model-parallel-size": str(outline.pipeline),
        }),
        (len(outline.blocks) > 1, "The layout, which is experimental in Megatron-Core: E embeddings, t a block, m one "
         "that predicts a further token, L the loss; | ends a stage, and entry a * PP + b is virtual stage a of "
         "pipeline rank b.", {LAYOUT: layout_of(outline.blocks, sizes.predicted)}),
        (True, "", {"micro-batch-size": str(outline.micro_batch), "global-batch-size": str(outline.batch)}),
        (outline.tensor_parallel > 1 and divided, "", {"sequence-parallel": None}),
        (outline.degrees != DEGREES, "Context and expert parallel devices are among the data parallel ones, as the "
         "plan has them; instances of the distributed optimizer are the groups whose devices share what ZeRO shares.", {
            argument: str(value) for name, argument in DEGREE_ARGUMENTS.items()
            if (value := outline.degrees[name]) != DEGREES[name]
        }),
        (sizes.optimizer not in ("adamw", "adam"), "", {
            "optimizer": "dist_muon" if muon and outline.zero else sizes.optimizer,
        }),
        (outline.zero == 2, "The distributed optimizer: the plan's ZeRO level 2, which shares its state and "
         "step.", {}),
        (shares, "", {"use-distributed-optimizer": None}),
        (outline.sharded and outline.zero, "", {INSTANCES: str(outline.data_parallel // (outline.sharded or 1))}),
        (sharded, "Megatron-FSDP: the plan's ZeRO level 3.", {
            "use-megatron-fsdp": None, "data-parallel-sharding-strategy": "optim_grads_params",
            "ckpt-format": "fsdp_dtensor", "no-gradient-accumulation-fusion": None,
        }),
        (remat == "selective", "Recomputing: the plan's selective remat, of the core of attention.", {
            "recompute-granularity": "selective",
        }),
        (remat == "layer" and outline.remat_share == 1, "Recomputing: the plan's remat, of each block in all stages.", {
            "recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": "1",
        }),
        (outline.remat_share < 1, "Recomputing: the plan's remat, of the first blocks of each stage.", {
            "recompute-granularity": "full", "recompute-method": "block", "recompute-num-layers": str(again),
        }),
        (offloads, "Offload: the share of the optimizer's state that the plan keeps in the memory of hosts.", {
            "optimizer-cpu-offload": None, "optimizer-offload-fraction": repr(outline.offload.optimizer),
            "use-precision-aware-optimizer": None,
        }),
        (hides, "", {"overlap-grad-reduce": None}),
        (hides and shares, "", {"overlap-param-gather": None}),
        (hidden == "tensor" and outline.tensor_parallel > 1, "", {"tp-comm-overlap": None}),
    )  # fmt: skip
    return [(why, arguments) for applies, why, arguments in rows if applies]


def _array(name: str, arguments: Mapping[str, str | None], more: str = "") -> str:
    lines = (f"  --{key}" + ("" if value is None else f" {shlex.quote(value)}") for key, value in arguments.items())
    return f"{name}=(\n" + "".join(f"{line}\n" for line in lines) + more + ")\n"


_GROUP, _TIMES = re.compile(r"\(([^()]+)\)\*(\d{1,5})"), re.compile(r"([^()*])\*(\d{1,5})")
_MOST = 100_000


def layout_of(blocks: Sequence[int], predicted: int = 0) -> str:
    """Returns the layout of stages with so many blocks, where embeddings are in the first and the loss in the last one,
    with the blocks that predict further tokens.

    >>> layout_of([3, 2, 2, 1])
    'Et*3|(t*2|)*2tL'
    """
    stages = ["t" * number if number < 2 else f"t*{number}" for number in blocks]
    stages[0] = f"E{stages[0]}"
    groups = [(stage, len(list(alike))) for stage, alike in itertools.groupby(stages[:-1])]
    text = "".join(f"({stage}|)*{number}" if number > 1 else f"{stage}|" for stage, number in groups)
    return f"{text}{stages[-1]}{'m' * predicted}L"


def blocks_of_layout(layout: str, predicted: int = 0) -> tuple[int, ...]:
    """Returns the number of blocks of each stage of a layout, whose last one has as many that predict further tokens;
    ValueError says what is wrong in it.

    >>> blocks_of_layout("Et*3|(tt|)*2,tmL", 1)
    (3, 2, 2, 1)
    """
    plain = layout.replace(",", "")
    for pattern in (_GROUP, _TIMES):
        plain = pattern.sub(lambda match: match[1] * min(int(match[2]), _MOST), plain)
        if len(plain) > _MOST:
            raise ValueError(f"layout is {short(layout)}, but must have at most {_MOST} layers; give fewer")
    letters = plain.replace("|", "")
    wrong = sorted(set(letters) - set("EtmL"))
    if wrong:
        why = f"layout is {short(layout)}, but must have the letters E, t, m and L alone, not {wrong[0]!r}"
        raise ValueError(why)
    end = "m" * predicted + "L"
    if plain.count("m") != predicted or not plain.endswith(end):
        raise ValueError(f"layout is {short(layout)}, but must end with {end} in one stage, by --mtp-num-layers")
    if letters != "E" + "t" * letters.count("t") + end:
        why = f"layout is {short(layout)}, but must begin with the one E and end with the one L; move them there"
        raise ValueError(why)
    return tuple(stage.count("t") for stage in plain.split("|"))
