"""Arguments of a pipeline that lie on another mesh than the one that reads them are fetched before any mesh starts.

Alpa hands each mesh its arguments and starts it, one after the other. An argument of a later mesh that lies on an
earlier one is fetched when that one runs already, and waits for what the later one is to send: neither goes on. A step
whose optimizer makes a parameter on another mesh than its layer's stops so at its second call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_stock_jax._patch import Patch

__all__ = ["fetch_elsewhere"]


def fetch_elsewhere(executable: Any, arguments: Sequence[Any]) -> list[Any]:
    """Returns a pipeline's arguments after what a mesh reads of other meshes was copied to the driver.

    An array of one mesh keeps its copy. One of several meshes that a mesh reads which hasn't got it, or has it cut
    otherwise, is replaced by its copy.
    """
    from alpa.device_mesh import DistributedArray, ReplicatedDistributedArray

    found = list(arguments)
    meshes = zip(executable.mesh_group, executable.mesh_arg_indices, executable.input_shard_indices, strict=True)
    for mesh, numbers, indices in meshes:
        for number, index in zip(numbers, indices, strict=True):
            array = arguments[number]
            if isinstance(array, ReplicatedDistributedArray):
                if not (array.is_replicated_on_mesh(mesh) and array.get_replica_on_mesh(mesh).indices == index):
                    found[number] = array._value
            elif isinstance(array, DistributedArray) and array.device_mesh is not mesh:
                _ = array._value
    return found


def _fetch_first(module: ModuleType) -> None:
    launch = module.PipeshardDriverExecutable.launch_on_driver

    @functools.wraps(launch)
    def launched(self: Any, *args: Any) -> Any:
        return launch(self, *fetch_elsewhere(self, args))

    module.PipeshardDriverExecutable.launch_on_driver = launched


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.pipeshard_executable",
        reason="arguments on other meshes than their readers are fetched before any mesh starts (a running one waits)",
        apply=_fetch_first,
        expects={"PipeshardDriverExecutable.launch_on_driver": ("self", "args")},
        uses=("alpa.device_mesh.DistributedArray", "alpa.device_mesh.ReplicatedDistributedArray"),
    ),
)
