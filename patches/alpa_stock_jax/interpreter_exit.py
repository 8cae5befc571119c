"""Executables that are left when Python ends, or were never finished, are dropped in silence.

Names that their destructor needs are gone by then, or its number was never given.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

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
)
