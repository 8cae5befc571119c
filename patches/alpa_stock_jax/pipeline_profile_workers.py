"""The workers of stage profiling take no CPUs and no devices of their own from Ray.

Alpa's placement group holds devices only, so a worker that asks for a CPU beside them is never started. A profiling
worker only drives the mesh that it launches, which takes the devices; a worker of the cost model only compiles, for as
many CPU devices as its mesh has, and stock jaxlib aborts on the GPU flags that Alpa gives it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import ray
from ray.util import ActorPool
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._ray_connection import session
from alpa_stock_jax.cpu_process import cpu_environment

__all__ = ["fill_pool"]


def fill_pool(pool: Any, actors: Sequence[Any]) -> None:
    """Makes actors those of a pool, which lasts as long as this connection to Ray."""
    pool.session = session()
    pool.actors = list(actors)
    pool.pool = ActorPool(pool.actors)
    pool.is_shutdown = False


def _on_cpu(module: ModuleType, original: Callable[..., None], replacement: Callable[..., None]) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        (replacement if module.global_config.backend == "cpu" else original)(self, *args, **kwargs)

    return __init__


def _drive_meshes(module: ModuleType) -> None:
    def fill(pool: Any, virtual_meshes: Sequence[Any], placement_group: Any) -> None:
        place = PlacementGroupSchedulingStrategy(placement_group)
        worker = ray.remote(num_cpus=0)(module.ProfileWorker).options(scheduling_strategy=place)
        fill_pool(pool, [worker.remote(mesh) for mesh in virtual_meshes])

    pool = module.ProfileWorkerPool
    pool.__init__ = _on_cpu(module, pool.__init__, fill)


def _compile_for_cost_model(module: ModuleType) -> None:
    def fill(
        pool: Any, num_cpus: int, placement_group: Any, prof_result: Any, mesh_num_devices: int, num_micro_batches: int
    ) -> None:
        worker = ray.remote(num_cpus=0)(module.HloCostModelProfileWorker).options(
            scheduling_strategy=PlacementGroupSchedulingStrategy(placement_group),
            runtime_env={"env_vars": cpu_environment(mesh_num_devices, os.environ)},
        )
        fill_pool(pool, [worker.remote(prof_result, mesh_num_devices, num_micro_batches) for _ in range(num_cpus)])

    pool = module.HloCostModelProfileWorkerPool
    pool.__init__ = _on_cpu(module, pool.__init__, fill)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.stage_profiling",
        reason="profiling workers ask Ray for no CPU: the placement group on CPU clusters holds devices only",
        apply=_drive_meshes,
        expects={"ProfileWorkerPool.__init__": ("self", "virtual_meshes", "placement_group")},
    ),
    Patch(
        module="alpa.pipeline_parallel.stage_profiling",
        reason="cost-model workers compile for CPU devices, without the GPU flags that stock jaxlib aborts on",
        apply=_compile_for_cost_model,
        expects={
            "HloCostModelProfileWorkerPool.__init__": (
                "self", "num_cpus", "placement_group", "prof_result", "mesh_num_devices", "num_micro_batches",
            ),
        },
    ),
)  # fmt: skip
