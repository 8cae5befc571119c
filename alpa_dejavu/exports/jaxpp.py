"""JaxPP as a target: where a model enters its stages, the mesh, and the schedule.

References:
    Xhebraj et al., Scaling Deep Learning Training with MPMD Pipeline Parallelism, MLSys 2025.
"""

from __future__ import annotations

from alpa_dejavu.exports._outline import Outline, commented, heading
from alpa_dejavu.exports._target import Files
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Plan
from alpa_dejavu.schedules import named_schedule
from alpa_dejavu.schedules.schedule_file import schedule_text

__all__ = ["RELEASE", "jaxpp_files"]

RELEASE = "JaxPP, update 26.09"
_CLASSES = {"1f1b": "Std1F1B", "1f1b_overlap_friendly": "Eager1F1B", "zb_h1": "ZeroBubble"}
_CHUNKED = "Interleaved1F1B"


def jaxpp_files(plan: Plan, outline: Outline, sizes: Transformer) -> Files:
    """Returns the Python that marks a model's stages for JaxPP, and a schedule without a class as CSV."""
    files = {"jaxpp_plan.py": _module(plan, outline, sizes)}
    if _made(outline) is None:
        tasks = named_schedule(outline.schedule, len(outline.blocks), outline.num_micro_batches)
        files["schedule.csv"] = schedule_text(tasks)
    return files


def _made(outline: Outline) -> str | None:
    """The schedule by its class; None: it has none."""
    if outline.schedule.startswith("interleaved"):
        if outline.num_micro_batches % len(outline.blocks):  # its own class asks for that
            return None
        return f"jaxpp.{_CHUNKED}(num_stages={len(outline.blocks)}, mpmd_dim={outline.pipeline})"
    name = _CLASSES.get(outline.schedule)
    return None if name is None else f"jaxpp.{name}({outline.pipeline})"


def _module(plan: Plan, outline: Outline, sizes: Transformer) -> str:
    enters = [layers[0] for layers in outline.layers[1:]]
    remat = [layer for again, layers in zip(outline.remat, outline.layers, strict=True) if again
             for layer in range(max(layers[0], 1), min(layers[1], sizes.num_blocks) + 1)]  # fmt: skip
    lines = [
        *heading(plan, outline, RELEASE), "",
        f"Layers in order: embeddings (0), {sizes.num_blocks} blocks, and the head ({sizes.num_blocks + 1}).",
        "ENTERS are the first layers of the plan's stages but the first one's; REMAT the blocks of stages with remat.",
        f"The batch comes in {outline.num_micro_batches} micro-batches along its first axis, of "
        f"{outline.micro_batch * outline.data_parallel} samples each.",
        _sharing(outline.zero),
    ]  # fmt: skip
    made = _made(outline)
    return commented(lines) + _CODE.format(
        enters=_wrapped(enters),
        remat=_wrapped(remat),
        micro_batches=outline.num_micro_batches,
        shape=(outline.pipeline, outline.data_parallel, outline.tensor_parallel),
        schedule=outline.schedule,
        made=made or f"Planned(num_stages={len(outline.blocks)})",
        own="" if made else _OF_FILE,
    )


_CODE = '''
import functools
import pathlib

import jax
import jaxpp.api as jaxpp
import numpy as np

ENTERS = {enters}
REMAT = {remat}
NUM_MICRO_BATCHES = {micro_batches}


def mesh():
    """Returns the mesh: pipeline, data and tensor parallel devices, the last ones next to each other."""
    shape = {shape}
    devices = np.array(jax.devices()).reshape(shape)
    return jaxpp.MpmdMesh(jax.sharding.Mesh(devices, ("stages", "data", "model")), "stages")


def through(layers, x):
    """Returns the result of a model's layers, a function each: embeddings, blocks, head; stages begin at ENTERS."""
    for n, layer in enumerate(layers):
        if n in ENTERS:
            x = jaxpp.pipeline_enter_stage(x)
        x = (jax.checkpoint(layer) if n in REMAT else layer)(x)
    return x


def schedule():
    """Returns the plan's schedule, {schedule}."""
    return {made}


def gradients(loss, parameters, batch):
    """Returns the loss and gradients of a batch whose first axis is that of micro-batches, inside of
    `jaxpp.mpmd_jit_with_loop`; `loss` takes parameters and a micro-batch.
    """
    each = functools.partial(jax.value_and_grad(loss), parameters)
    return jaxpp.treduce(each, batch, schedule=schedule())
{own}'''

_OF_FILE = '''

class Planned(jaxpp.BaseSchedule):
    """The schedule of the CSV beside this file: a line for each device, with a cell such as 2F0 for each task."""

    def __post_init__(self):
        super().__post_init__()
        self.is_partial_bwd = True

    def tasks(self, n_mubatches):
        from jaxpp.types import ScheduleTasks, Task, TaskType

        kinds = {"F": TaskType.FWD, "B": TaskType.BWD, "I": TaskType.BWD_I, "W": TaskType.BWD_W}
        rows = []
        for line in pathlib.Path(__file__).with_name("schedule.csv").read_text().splitlines():
            row = []
            for cell in line.split(","):
                stage, kind, part = next(cell.partition(kind) for kind in kinds if kind in cell)
                row.append(Task(int(stage), int(part), kinds[kind]))
            rows.append(row)
        return ScheduleTasks(rows)
'''


def _sharing(zero: int) -> str:
    if zero == 3:
        return "ZeRO level 3: shard parameters, gradients and optimizer's state along 'data', by their NamedSharding."
    if zero == 2:
        return "ZeRO level 2: shard the optimizer's state along 'data', by its NamedSharding; parameters aren't."
    return "ZeRO level 0: parameters and optimizer's state aren't sharded along 'data'."


def _wrapped(numbers: list[int]) -> str:
    """Numbers as a set, in lines of 20."""
    if not numbers:
        return "frozenset()"
    rows = [numbers[n : n + 20] for n in range(0, len(numbers), 20)]
    lines = "".join(f"    {', '.join(map(str, row))},\n" for row in rows)
    return "frozenset({\n" + lines + "})" if len(rows) > 1 else f"frozenset({{{', '.join(map(str, numbers))}}})"
