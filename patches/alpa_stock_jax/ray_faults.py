"""A worker that dies or fails is told to the driver, as one error that says why, and the other workers are ended."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import ray

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._ray_connection import session, unless_over

_STARTING = ("shard_args_to_bufs", "shard_args_to_arrays")
_WAITING = (
    "get_remote_buffers",
    "block_until_ready_remote_buffers",
    "get_remote_timer",
    "reset_remote_timer",
    "get_remote_tracer",
    "get_memory_allocated",
    "get_max_memory_allocated",
    "get_available_memory",
    "reset_memory_stats",
    "sync_workers",
    "sync_move_workers",
)
_FREEING = ("delete_remote_buffers", "delete_remote_executable")
_EXECUTABLE_WAITING = ("get_hlo_text", "get_total_allocation_size", "profile_with_dummy_inputs")
_PIPELINE_WAITING = (
    "get_hlo_text",
    "get_stage_allocation_size",
    "get_stage_execution_info",
    "profile_all_executable_with_dummy_inputs",
    "sync",
    "sync_move_workers",
)


def _checking(method: Any) -> Any:
    """The method, which raises if its mesh was ended by a fault."""

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        from alpa_stock_jax._ray_monitor import monitor

        monitor.check(self)
        return method(self, *args, **kwargs)

    return checked


def _explaining(method: Any, mesh_of: Any) -> Any:
    """The method, whose errors of Ray are replaced by the fault that is behind them."""

    @functools.wraps(method)
    def explained(self: Any, *args: Any, **kwargs: Any) -> Any:
        from alpa_stock_jax._ray_monitor import monitor

        try:
            return method(self, *args, **kwargs)
        except ray.exceptions.RayError as error:
            cause = monitor.explain(mesh_of(self), error)
            if cause is error:
                raise
            raise cause from error

    return explained


def _wrap(cls: Any, names: Sequence[str], wrap: Any) -> None:
    for name in names:
        setattr(cls, name, wrap(getattr(cls, name)))


def _watch_meshes(module: ModuleType) -> None:
    mesh_class: Any = module.DistributedPhysicalDeviceMesh
    original_init, original_shutdown = mesh_class.__init__, mesh_class.shutdown

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        from alpa_stock_jax._ray_monitor import monitor

        self.session = session()
        original_init(self, *args, **kwargs)
        if module.global_config.backend == "cpu" and self.launched:
            monitor.watch(self)

    @functools.wraps(original_shutdown)
    def shutdown(self: Any, forced: bool = False) -> None:
        from alpa_stock_jax._ray_monitor import WorkerFault, monitor

        if self.launched and not (ray.is_initialized() and self.session == session()):
            self.workers, self.launched = None, False  # they have ended with Ray
        try:
            monitor.check(self)
        except WorkerFault:
            forced = True
        monitor.unwatch(self)
        try:
            original_shutdown(self, forced)
        except ray.exceptions.RayError:
            original_shutdown(self, True)

    mesh_class.__init__, mesh_class.shutdown = init, shutdown
    _wrap(mesh_class, _STARTING, _checking)
    _wrap(mesh_class, _FREEING, unless_over)
    _wrap(mesh_class, _WAITING, functools.partial(_explaining, mesh_of=lambda mesh: mesh))
    _wrap(
        module.PhysicalDeviceMeshGroup,
        ("sync_workers", "get_memory_allocated", "get_max_memory_allocated"),
        functools.partial(_explaining, mesh_of=lambda group: group.meshes[0]),
    )


def _explain_executables(module: ModuleType) -> None:
    explain = functools.partial(_explaining, mesh_of=lambda executable: executable.physical_mesh)
    for name in ("NormalMeshDriverExecutable", "GradAccMeshDriverExecutable"):
        cls = getattr(module, name)
        _wrap(cls, [method for method in _EXECUTABLE_WAITING if method in vars(cls)], explain)


def _explain_pipelines(module: ModuleType) -> None:
    cls: Any = module.PipeshardDriverExecutable
    _wrap(cls, _PIPELINE_WAITING, functools.partial(_explaining, mesh_of=lambda executable: executable.mesh_group[0]))


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="workers are watched: one that dies or fails ends the others, and the driver is told why",
        apply=_watch_meshes,
        expects={
            **{f"DistributedPhysicalDeviceMesh.{name}": None for name in (*_STARTING, *_WAITING, *_FREEING)},
            "DistributedPhysicalDeviceMesh.shutdown": ("self", "forced"),
            "PhysicalDeviceMeshGroup.sync_workers": ("self",),
        },
        uses=("ray.runtime_context.RuntimeContext.gcs_address", "ray.runtime_context.RuntimeContext.get_job_id"),
    ),
    Patch(
        module="alpa.mesh_executable",
        reason="an error of Ray in a call to an executable is replaced by the fault behind it",
        apply=_explain_executables,
        expects={"NormalMeshDriverExecutable.get_hlo_text": None, "GradAccMeshDriverExecutable.get_hlo_text": None},
    ),
    Patch(
        module="alpa.pipeline_parallel.pipeshard_executable",
        reason="an error of Ray in a call to a pipeline is replaced by the fault behind it",
        apply=_explain_pipelines,
        expects={f"PipeshardDriverExecutable.{name}": None for name in _PIPELINE_WAITING},
    ),
)
