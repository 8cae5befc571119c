"""What is left when Python ends or Ray has stopped, or was never finished, is dropped in silence.

Names that destructors need are gone when Python ends, and an executable that was never finished has no number. A worker
pool that an error's traceback keeps would start Ray anew to end its workers, and wait for it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch
from alpa_stock_jax._ray_connection import unless_over

__all__: list[str] = []


def _stay_silent(executable: Any) -> None:
    stock_del, is_finalizing = executable.__del__, sys.is_finalizing

    def __del__(self: Any) -> None:
        # An executable whose construction failed has no number yet, and nothing on its workers.
        if not is_finalizing() and hasattr(self, "exec_uuid"):
            stock_del(self)

    executable.__del__ = __del__


def _stay_silent_on_meshes(module: ModuleType) -> None:
    _stay_silent(module.MeshDriverExecutable)


def _stay_silent_in_pipelines(module: ModuleType) -> None:
    _stay_silent(module.PipeshardDriverExecutable)


def _let_pools_be(module: ModuleType) -> None:
    pool: Any = module.BaseWorkerPoolWrapper
    pool.__del__ = unless_over(pool.__del__)


def _let_loaders_be(module: ModuleType) -> None:
    loader: Any = module.MeshDriverDataLoader
    loader.__del__ = unless_over(loader.__del__, lambda one: one.physical_mesh)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.mesh_executable",
        reason="executables that outlive their modules, or were never finished, are dropped without a traceback",
        apply=_stay_silent_on_meshes,
        expects={"MeshDriverExecutable.__del__": ("self",)},
    ),
    Patch(
        module="alpa.pipeline_parallel.pipeshard_executable",
        reason="so are the executables of pipelines",
        apply=_stay_silent_in_pipelines,
        expects={"PipeshardDriverExecutable.__del__": ("self",)},
    ),
    Patch(
        module="alpa.pipeline_parallel.stage_profiling",
        reason="a pool of workers that outlives Ray is dropped, instead of starting Ray anew to end them",
        apply=_let_pools_be,
        expects={"BaseWorkerPoolWrapper.__del__": ("self",)},
    ),
    Patch(
        module="alpa.data_loader",
        reason="so are data loaders",
        apply=_let_loaders_be,
        expects={"MeshDriverDataLoader.__del__": ("self",)},
    ),
)
