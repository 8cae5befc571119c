"""Arguments of a pipeline that lie on another mesh than the one that reads them are fetched before any mesh starts.

Alpa hands each mesh its arguments and starts it, one after the other. An argument of a later mesh that lies on an
earlier one is fetched when that one runs already, and waits for what the later one is to send: neither goes on. A step
whose optimizer makes a parameter on another mesh than its layer's stops so at its second call.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

__all__ = ["fetch_elsewhere"]


def fetch_elsewhere(executable: Any, arguments: Any) -> None:
    """Copies to the driver what a mesh of a pipeline reads of other meshes; the arrays keep the copies."""
    from alpa.device_mesh import DistributedArray

    for mesh, indices in zip(executable.mesh_group, executable.mesh_arg_indices, strict=True):
        for array in (arguments[index] for index in indices):
            if isinstance(array, DistributedArray) and array.device_mesh is not mesh:
                _ = array._value


def _fetch_first(module: ModuleType) -> None:
    launch = module.PipeshardDriverExecutable.launch_on_driver

    @functools.wraps(launch)
    def launched(self: Any, *args: Any) -> Any:
        fetch_elsewhere(self, args)
        return launch(self, *args)

    module.PipeshardDriverExecutable.launch_on_driver = launched


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.pipeshard_executable",
        reason="arguments on other meshes than their readers are fetched before any mesh starts (a running one waits)",
        apply=_fetch_first,
        expects={"PipeshardDriverExecutable.launch_on_driver": ("self", "args")},
        uses=("alpa.device_mesh.DistributedArray",),
    ),
)
