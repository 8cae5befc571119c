"""A plan as a function that returns torchtitan's configuration, with the schedule as CSV."""

from __future__ import annotations

import pprint
from collections.abc import Sequence

from alpa_dejavu.exports._outline import commented, filled, heading
from alpa_dejavu.exports._target import Files
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import Plan
from alpa_dejavu.schedules import kind_name, named_schedule
from alpa_dejavu.schedules.schedule_file import schedule_text

RELEASE = "torchtitan 0.3.0"
NAMES = {
    "1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
}  # fmt: skip
"""Schedules that PyTorch has by a name; configurations load others from a CSV. Those that split aren't written."""
CONVERTERS = {
    "float8": ("Float8", "float8", 'recipe_name="tensorwise"', 'filter_fqns=["lm_head"]'),
    "mxfp8": ("MXFP8", "mx", 'fqns=["layers"]'),
}  # fmt: skip
"""The converters to 8 bits, by precisions: how the names of their classes begin, how those in TOML end, and arguments
of that of linear layers."""
_CHECKPOINTS = {"none": "None", "selective": "SelectiveAC.Config()", "layer": "FullAC.Config()"}


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
        and not sizes.unusual
    )  # fmt: skip
    lines = [
        *heading(plan, outline, RELEASE), "",
        "Run it with this folder on PYTHONPATH and one process for each device:",
        f"  NGPU={plan.num_devices} MODULE=torchtitan_plan CONFIG=config ./run_train.sh",
    ]  # fmt: skip
    if not is_llama:
        lines += ["torchtitan 0.3.0 has no model of this kind: register yours, and have model_spec() return it."]
    compiled = plan.priced_by is None or plan.priced_by.runtime.partition("+")[0] != "fsdp"
    pipelined, whole = outline.pipeline > 1, plan.priced_by is not None and not plan.priced_by.sequence_parallel
    shared = (outline.sharded or outline.data_parallel) if outline.zero else 1
    return commented(lines) + filled(
        "torchtitan_plan",
        outline=outline,
        sizes=sizes,
        spec=llama_spec(sizes) if is_llama else filled("torchtitan_own_model"),
        replicate=outline.data_parallel // shared,
        shard=shared // outline.context_parallel if outline.zero else 1,
        reshard="always" if outline.zero == 3 else "never",
        whole="\n        enable_sequence_parallel=False," if whole else "",
        stages=_stages(outline) if pipelined else "",
        passes=", in one pass through the pipeline" if pipelined else "",
        local_batch=outline.micro_batch * (outline.num_micro_batches if pipelined else 1),
        without_graphs=pipelined or outline.expert_parallel > 1,
        checkpoint=_CHECKPOINTS[outline.remat[0]],
        mixed="float32" if sizes.precision == "float32" else "bfloat16",
        made="model_spec()" if sizes.precision not in CONVERTERS else "quantized(model_spec())",
        quantized=_quantized(sizes, compiled),
        compiled=compiled,
    )


def llama_spec(sizes: Transformer) -> str:
    """Returns the function that makes the model, one of torchtitan's Llama 3 with these sizes."""
    scaled = sizes.rotary_scaling > 1
    scaling = f', scaling="llama", scaling_factor={sizes.rotary_scaling}' if scaled else ""
    return filled("torchtitan_llama3", sizes=sizes, scaling=scaling)


def _quantized(sizes: Transformer, compiled: bool) -> str:
    if sizes.precision not in CONVERTERS:
        return ""
    kind, _, *linear = CONVERTERS[sizes.precision]
    calls = {f"{kind}LinearConverter": linear} | ({f"{kind}GroupedExpertsConverter": []} if sizes.num_experts else {})
    for own in calls.values():
        own.append(f"model_compile_enabled={compiled}")
    lines = (f"{name}.Config({', '.join(own)})" for name, own in calls.items())
    return filled("torchtitan_quantized", names=", ".join(calls), calls=",\n        ".join(lines))


def _stages(outline: Outline) -> str:
    parts = (pprint.pformat(part, width=96, compact=True).splitlines() for part in module_names(outline.blocks))
    listed = "\n".join(" " * 12 + ("\n" + " " * 12).join(lines) + "," for lines in parts)
    text = filled("torchtitan_stages", parts=listed, outline=outline)
    return text + filled("torchtitan_named", name=NAMES[kind_name(outline.schedule)])
