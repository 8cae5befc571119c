"""JaxPP as a target: where a model enters its stages, the mesh, and the schedule.

References:
    Xhebraj et al., Scaling Deep Learning Training with MPMD Pipeline Parallelism, MLSys 2025.
"""

from __future__ import annotations

from alpa_dejavu.exports._outline import commented, filled, heading
from alpa_dejavu.exports._target import Files
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.plans.outline import Outline
from alpa_dejavu.problem import Plan
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.schedules.schedule_file import schedule_text

RELEASE = "JaxPP, update 26.09"
_CLASSES = {"1f1b": "Std1F1B", "1f1b_overlap_friendly": "Eager1F1B", "zb_h1": "ZeroBubble"}
_SHARING = {
    0: "ZeRO level 0: parameters and optimizer's state aren't sharded along 'data'.",
    2: "ZeRO level 2: shard the optimizer's state along 'data', by its NamedSharding; parameters aren't.",
    3: "ZeRO level 3: shard parameters, gradients and optimizer's state along 'data', by their NamedSharding.",
}


def jaxpp_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns the Python that marks a model's stages for JaxPP, and a schedule without a class as CSV."""
    stages, schedule = len(outline.blocks), _schedule(outline)
    remat = [
        max(first, 1) + n for again, (first, _) in zip(outline.again, outline.layers, strict=True) for n in range(again)
    ]  # fmt: skip
    lines = [
        *heading(plan, outline, RELEASE), "",
        f"Layers in order: embeddings (0), {sizes.num_blocks} blocks, and the head ({sizes.num_blocks + 1}).",
        "ENTERS are the first layers of the plan's stages but the first one's; REMAT the blocks of stages with remat.",
        f"The batch comes in {outline.num_micro_batches} micro-batches along its first axis, of "
        f"{outline.micro_batch * outline.data_parallel} samples each.",
        _SHARING[outline.zero],
    ]  # fmt: skip
    text = commented(lines) + filled(
        "jaxpp_plan",
        enters=_wrapped([first for first, _ in outline.layers[1:]]),
        remat=_wrapped(remat),
        micro_batches=outline.num_micro_batches,
        shape=(outline.pipeline, outline.data_parallel, outline.tensor_parallel),
        schedule=outline.schedule,
        made=schedule or f"Planned(num_stages={stages})",
        own="" if schedule else filled("jaxpp_schedule"),
    )
    if schedule:
        return {"jaxpp_plan.py": text}
    tasks = named_schedule(outline.schedule, stages, outline.num_micro_batches)
    return {"jaxpp_plan.py": text, "schedule.csv": schedule_text(tasks)}


def _schedule(outline: Outline) -> str:
    """Returns the call that makes the schedule; empty: JaxPP has no class of it."""
    if not outline.schedule.startswith("interleaved"):
        name = _CLASSES.get(outline.schedule)
        return f"jaxpp.{name}({outline.pipeline})" if name else ""
    if outline.num_micro_batches % len(outline.blocks):  # its own class asks for that
        return ""
    return f"jaxpp.Interleaved1F1B(num_stages={len(outline.blocks)}, mpmd_dim={outline.pipeline})"


def _wrapped(numbers: list[int]) -> str:
    """Numbers as a set, in lines of 20."""
    rows = [", ".join(map(str, numbers[n : n + 20])) for n in range(0, len(numbers), 20)]
    if len(rows) > 1:
        return "frozenset({\n" + "".join(f"    {row},\n" for row in rows) + "})"
    return f"frozenset({{{rows[0]}}})" if rows else "frozenset()"
