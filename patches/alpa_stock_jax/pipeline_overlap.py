"""The schedule `1f1b_overlap_friendly` sends each stage's results as soon as they are there.

Alpa sorts what a stage sends by a key function of three arguments, to which Python gives one, so the schedule has
always failed where anything is sent. The plan of the sends is made anew here. What a mesh gathers between its own
devices is received in the pieces that are sent, as in Alpa's other schedules: room was made for the gathered array.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

__all__ = ["merge_sends", "plan_sends"]

# Index of the receiving mesh, a variable, how the receiver has it cut.
Send = tuple[int, Any, Any]
# Index of the receiving mesh, the variables that it gets at once, how it has them cut.
MergedSend = tuple[int, list[Any], list[Any]]


def plan_sends(stages: Sequence[Any], stage_meshes: Sequence[int], inputs: Collection[Any]) -> list[list[Send]]:
    """What each stage sends: each variable once to each mesh that reads it, from the stage that made it first.

    Args:
        stages: in the order of their execution; each has `invars`, `outvars` and `input_sharding_specs`.
        stage_meshes: the mesh of each stage.
        inputs: variables that no stage makes.
    """
    sends: list[list[Send]] = [[] for _ in stages]
    maker: dict[Any, int] = {}
    lies_at: dict[Any, set[int]] = {}
    for index, (stage, mesh) in enumerate(zip(stages, stage_meshes, strict=True)):
        for variable, spec in zip(stage.invars, stage.input_sharding_specs, strict=True):
            if variable not in inputs and mesh not in lies_at[variable]:
                lies_at[variable].add(mesh)
                sends[maker[variable]].append((mesh, variable, spec))
        for variable in stage.outvars:
            maker.setdefault(variable, index)
            lies_at.setdefault(variable, set()).add(mesh)
    return sends


def merge_sends(sends: Sequence[Send], order: Mapping[Any, int]) -> list[MergedSend]:
    """A stage's sends in the order in which their variables are made; what goes to one mesh in a row goes at once."""
    ordered = sorted(sends, key=lambda send: (order[send[1]], send[0]))
    return [
        (mesh, [variable for _, variable, _ in group], [spec for _, _, spec in group])
        for mesh, group in ((mesh, list(group)) for mesh, group in itertools.groupby(ordered, key=lambda send: send[0]))
    ]


def _plan_for_emitter(emitter: Any, outvar_def_order: Sequence[Sequence[Any]]) -> None:
    emitter._compile_sharding_specs()
    meshes = [next(iter(emitter.schedule.stage_placement(index))) for index in range(len(emitter.stages))]
    inputs = {*emitter.global_invars, *emitter.grad_dummy_invars}
    orders = [{variable: place for place, variable in enumerate(order)} for order in outvar_def_order]
    sends = plan_sends(emitter.stages, meshes, inputs)
    emitter.stage_send_vars = [merge_sends(of_stage, order) for of_stage, order in zip(sends, orders, strict=True)]


def _replace(module: ModuleType) -> None:
    emitter_class = module.OverlapFriendlyPipelineInstEmitter
    emitter_class._get_stage_send_vars = _plan_for_emitter
    receive = module.PipelineInstEmitter._compile_get_vars_from_mesh

    def receive_as_sent(
        emitter: Any, invars: Sequence[Any], dst_specs: Sequence[Any], mesh_idx: int, batch_idx: int, *rest: Any
    ) -> None:
        specs = [
            _received_spec(emitter, variable, spec, mesh_idx, batch_idx)
            for variable, spec in zip(invars, dst_specs, strict=True)
        ]
        receive(emitter, invars, specs, mesh_idx, batch_idx, *rest)

    emitter_class._compile_get_vars_from_mesh = receive_as_sent


def _received_spec(emitter: Any, variable: Any, spec: Any, mesh: int, batch: int) -> Any:
    """How a variable is cut when a mesh receives it, which may gather its pieces only then."""
    source = next(iter(emitter.env.get_var_meshes(variable, batch)))
    task = emitter._resharding_tasks[source][mesh][emitter.env.get_var_with_accumulate(variable, batch)]
    return task.task_spec.dst_sharding_spec if task.is_local_allgather_task else spec


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.runtime_emitter",
        reason="the overlap-friendly schedule sorts what a stage sends, and receives in pieces what its devices gather",
        apply=_replace,
        expects={
            "OverlapFriendlyPipelineInstEmitter._get_stage_send_vars": ("self", "outvar_def_order"),
            "PipelineInstEmitter._compile_sharding_specs": ("self",),
            "PipelineInstEmitter._compile_get_vars_from_mesh": (
                "self", "invars", "dst_specs", "mesh_idx", "batch_idx", "comm_lists", "alloc_lists",
                "executable_config_lists",
            ),
        },
    ),
)
