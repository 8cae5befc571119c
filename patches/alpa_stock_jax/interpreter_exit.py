"""Executables that are left when Python ends are dropped in silence: the names that their destructor needs are gone by
then.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

__all__: list[str] = []


def _stay_silent_at_exit(module: ModuleType) -> None:
    executable: Any = module.MeshDriverExecutable
    stock_del, is_finalizing = executable.__del__, sys.is_finalizing

    def __del__(self: Any) -> None:
        # An executable whose construction failed has no mesh yet, and nothing on its workers.
        if not is_finalizing() and hasattr(self, "physical_mesh"):
            stock_del(self)

    executable.__del__ = __del__


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.mesh_executable",
        reason="executables that outlive their modules, or were never finished, are dropped without a traceback",
        apply=_stay_silent_at_exit,
        expects={"MeshDriverExecutable.__del__": ("self",)},
    ),
)
