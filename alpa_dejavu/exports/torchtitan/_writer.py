"""A plan as a function that returns torchtitan's configuration, with the schedule as CSV."""

from __future__ import annotations

import pprint
from collections.abc import Sequence

from alpa_dejavu.exports._outline import Outline, commented, filled, heading
from alpa_dejavu.exports._target import Files
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Plan
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.schedules.schedule_file import schedule_text

RELEASE = "torchtitan 0.3.0"
NAMES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}  # fmt: skip
"""Schedules that PyTorch has by a name; others are loaded from the CSV."""


def torchtitan_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns a module with the function that makes the configuration, and for a pipeline its schedule as CSV."""
    files = {"torchtitan_plan.py": _module(plan, outline, sizes)}
    if outline.pipeline > 1:
        schedule = named_schedule(outline.schedule, len(outline.blocks), outline.num_micro_batches)
        files["schedule.csv"] = schedule_text(schedule)
    return files


def module_names(blocks: Sequence[int]) -> list[list[str]]:
    """Returns the names of the modules of stages of so many blocks, as `module_fqns_per_model_part` takes them."""
    parts, begin = [], 0
    for number in blocks:
        parts.append([f"layers.{n}" for n in range(begin, begin + number)])
        begin += number
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def _module(plan: Plan, outline: Outline, sizes: Transformer) -> str:
    is_llama = (
        sizes.gated and sizes.rotary and sizes.rms_norm and sizes.biases == "none" and not sizes.qk_norm
        and not sizes.num_experts and not sizes.latent_rank and sizes.head_size * sizes.num_heads == sizes.hidden
    )  # fmt: skip
    lines = [
        *heading(plan, outline, RELEASE), "",
        "Run it with this folder on PYTHONPATH and one process for each device:",
        f"  NGPU={plan.num_devices} MODULE=torchtitan_plan CONFIG=config ./run_train.sh",
    ]  # fmt: skip
    if not is_llama:
        lines += ["torchtitan 0.3.0 has no model of this kind: register yours, and have model_spec() return it."]
    return commented(lines) + filled(
        "torchtitan_plan",
        spec=_spec(sizes) if is_llama else filled("torchtitan_own_model"),
        parallelism=_parallelism(outline),
        passes=", in one pass through the pipeline" if outline.pipeline > 1 else "",
        local_batch=outline.micro_batch * (outline.num_micro_batches if outline.pipeline > 1 else 1),
        batch=outline.batch,
        sequence=sizes.sequence,
        precision=sizes.precision,
        offload=outline.offload.any,
        checkpoint="FullAC.Config()" if outline.remat[0] else "None",
        compiled=plan.priced_by is None or plan.priced_by.runtime.partition("+")[0] != "fsdp",
    )


def _parallelism(outline: Outline) -> str:
    replicate, shard = (outline.data_parallel, 1) if outline.zero == 0 else (1, outline.data_parallel)
    fields = [
        f"data_parallel_replicate_degree={replicate},",
        f"data_parallel_shard_degree={shard},",
        "# The plan's ZeRO level: 3 gathers parameters for each pass, 2 keeps them gathered; 0 replicates them.",
        f"fsdp_reshard_after_forward={'always' if outline.zero == 3 else 'never'!r},",
        f"tensor_parallel_degree={outline.tensor_parallel},",
        f"pipeline_parallel_degree={outline.pipeline},",
    ]
    if outline.pipeline > 1:
        name = NAMES.get(outline.schedule.partition("_")[0] if "interleaved" in outline.schedule else outline.schedule)
        fields += [
            "# The plan's stages.",
            "module_fqns_per_model_part=[",
            *(f"    {_listed(part)}," for part in module_names(outline.blocks)),
            "],",
            f"pipeline_parallel_microbatch_size={outline.micro_batch},",
        ]
        if name is None:
            fields += [
                f"# PyTorch has no {outline.schedule}: the CSV beside this file has its tasks. The name only says how",
                "# stages lie on ranks: down and back up for ZBVZeroBubble, one each for 1F1B.",
                f"pipeline_parallel_schedule={'ZBVZeroBubble' if outline.chunks > 1 else '1F1B'!r},",
                'pipeline_parallel_schedule_csv=str(pathlib.Path(__file__).with_name("schedule.csv")),',
            ]
        else:
            fields += [
                "# The plan's schedule; the CSV beside this file has its tasks, for pipeline_parallel_schedule_csv.",
                f"pipeline_parallel_schedule={name!r},",
            ]
    body = "\n".join(f"        {line}" for line in fields)
    return f"""
def parallelism() -> ParallelismConfig:
    return ParallelismConfig(
{body}
    )
"""


def _listed(names: list[str]) -> str:
    return "\n            ".join(pprint.pformat(names, width=96, compact=True).splitlines())


def _spec(sizes: Transformer) -> str:
    scaling = f', scaling="llama", scaling_factor={sizes.rotary_scaling}' if sizes.rotary_scaling > 1 else ""
    return filled("torchtitan_llama3", sizes=sizes, scaling=scaling)
