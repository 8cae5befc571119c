"""Workers that stay while plans come and go: a plan's stages are put on those that run already, in the plan's order.

Alpa keeps the submeshes that it has launched first. Starting workers takes longer than measuring a plan, so plans
whose stages are on the same sets of hosts share them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, final

from alpa_dejavu.problem import Plan

Place = tuple[int, ...]
"""The hosts of a mesh, in its order."""


def needed(plan: Plan, names: Sequence[str]) -> list[Place]:
    """The hosts of each stage."""
    numbers = {name: number for number, name in enumerate(names)}
    return [tuple(numbers[host] for host in stage.hosts) for stage in plan.stages]


@final
class Meshes:
    """The meshes of the cluster that Alpa is connected to, one device on each host."""

    def __init__(self, places: Sequence[Place]) -> None:
        from alpa.device_mesh import get_global_virtual_physical_mesh
        from alpa.pipeline_parallel import stage_construction

        from alpa_dejavu.alpa import install
        from alpa_dejavu.alpa._places import on_hosts
        from alpa_dejavu.alpa.ray_cluster import host_names

        install()
        self._virtual: Any = get_global_virtual_physical_mesh()
        with on_hosts(places):
            sliced = stage_construction.get_sliced_virtual_submeshes(self._virtual, [(len(p), 1) for p in places])
        self._all: Any = self._virtual.get_physical_mesh_group(sliced)
        self._by_place = dict(zip(places, self._all.meshes, strict=True))
        self.names = host_names(self._virtual)

    @property
    def launched(self) -> list[Any]:
        """All of them, in the order of their places."""
        return list(self._all.meshes)

    def use(self, places: Sequence[Place]) -> None:
        """Has the next plan that Alpa compiles run on these meshes, in this order."""
        chosen = []
        for number, place in enumerate(places):
            # Another view of the same workers: a mesh knows its number in the pipeline.
            mesh = copy.copy(self._by_place[place])
            mesh.mesh_id = number
            chosen.append(mesh)
        self._virtual.launched_physical_mesh_group = type(self._all)(chosen, self._virtual)

    def close(self) -> None:
        """All of them are there again, to be shut down."""
        self._virtual.launched_physical_mesh_group = self._all
