"""Groups of workers that exchange tiles on CPU: each worker is told who the others are; no communicator is made."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import ray

from alpa_stock_jax._patch import Patch

__all__ = ["join"]


def join(name: str, workers: Sequence[Any], device_ranks: dict[str, int]) -> list[Any]:
    """Makes workers a group.

    Args:
        name: of the group.
        workers: the actors, by rank.
        device_ranks: name of a device -> the rank of its worker.

    Returns:
        What to wait for until all know it.
    """
    return [worker.join_group.remote(name, rank, list(workers), device_ranks) for rank, worker in enumerate(workers)]


def _instantiate(group: Any) -> None:
    if not group.instantiated:
        device_ranks = {device: rank for device, (rank, _) in group.device_str_to_rank_map.items()}
        ray.get(join(group.group_name, group.mesh_workers, device_ranks))
        group.instantiated = True


def _destroy(group: Any) -> None:
    # Not waited for: the workers may have died, and there is nothing in Ray to free.
    for worker in group.mesh_workers:
        worker.destroy_collective_group.remote(group.group_name)
    group.instantiated = False


def _replace_in_resharding(module: ModuleType) -> None:
    group_class: Any = module.CollectiveGroup
    tasks: tuple[Any, ...] = (module.SymbolicReshardingTask, module.SymbolicBroadcastReshardingTask)
    for name in ("instantiate", "instantiate_now"):
        setattr(group_class, name, _on_cpu(module, getattr(group_class, name), _instantiate))
    group_class.destroy = _on_cpu(module, group_class.destroy, _destroy)
    for task in tasks:
        task.create_resharding_communicators = _on_cpu(module, task.create_resharding_communicators, lambda task: None)


def _on_cpu(module: ModuleType, original: Any, replacement: Any) -> Any:
    @functools.wraps(original)
    def method(self: Any) -> Any:
        return replacement(self) if module.global_config.backend == "cpu" else original(self)

    return method


def _replace_in_meshes(module: ModuleType) -> None:
    original = module.create_and_record_cross_mesh_collective_communicators

    @functools.wraps(original)
    def create(meshes: Sequence[Any], key: Any) -> list[Any]:
        if module.global_config.backend != "cpu":
            return original(meshes, key)
        ranks: dict[str, int] = {}
        workers: list[Any] = []
        for mesh in meshes:
            for host, worker in enumerate(mesh.workers):
                first = host * mesh.num_devices_per_host
                devices = mesh.device_strs[first : first + mesh.num_devices_per_host]
                ranks.update(dict.fromkeys(devices, len(workers)))
                workers.append(worker)
        return join(str(key), workers, ranks)

    module.create_and_record_cross_mesh_collective_communicators = create  # type: ignore[attr-defined]


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.device_mesh",
        reason="workers on CPU that reduce across meshes are told of each other; NCCL's communicators are for GPUs",
        apply=_replace_in_meshes,
        expects={"create_and_record_cross_mesh_collective_communicators": ("meshes", "key")},
    ),
    Patch(
        module="alpa.pipeline_parallel.cross_mesh_resharding",
        reason="workers on CPU that exchange tiles are told of each other; NCCL's communicators are for GPUs",
        apply=_replace_in_resharding,
        expects={
            "CollectiveGroup.instantiate": ("self",),
            "CollectiveGroup.instantiate_now": ("self",),
            "CollectiveGroup.destroy": ("self",),
            "SymbolicReshardingTask.create_resharding_communicators": ("self",),
            "SymbolicBroadcastReshardingTask.create_resharding_communicators": ("self",),
        },
    ),
)
