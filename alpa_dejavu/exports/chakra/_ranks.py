"""The ranks of a plan's devices, and the groups of those that run collectives together."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.clusters.host_classes import hosts_by_names
from alpa_dejavu.problem import MeshConfig, Plan


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of the devices that a plan uses: host by host, so that simulators whose ranks of one host are next to
    each other have them so. The devices of a logical mesh are next to each other along its last axis.

    Attributes:
        of_submesh: the ranks of each submesh of the pipeline, in the order of its logical mesh.
        places: of each rank, the name of its host and the number of its device there.
    """

    of_submesh: tuple[tuple[int, ...], ...]
    places: tuple[tuple[str, int], ...]
    _groups: dict[tuple[int, ...], int] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, plan: Plan) -> Ranks:
        """Returns the ranks of a plan's devices; where a host has several submeshes, they take its devices in order."""
        hosts = [host.name for host in (plan.hardware or hosts_by_names(plan)).hosts]
        used = plan.devices_of_hosts
        order = [*dict.fromkeys([*(name for name in hosts if name in used), *used])]
        places = [(name, device) for name in order for device in range(used[name])]
        rank = {place: n for n, place in enumerate(places)}
        next_device = dict.fromkeys(order, 0)
        submeshes = []
        for stage in plan.on_submeshes:
            ranks = []
            for name in stage.hosts:
                per_host = stage.submesh.devices_per_host
                ranks += [rank[name, device] for device in range(next_device[name], next_device[name] + per_host)]
                next_device[name] += per_host
            submeshes.append(tuple(ranks))
        return cls(tuple(submeshes), tuple(places))

    def groups(self, submesh: int, config: MeshConfig, axis: int) -> tuple[int, ...]:
        """Returns for each device of a submesh the number of its group of an axis, as `MeshConfig.groups` has them."""
        ranks, number = self.of_submesh[submesh], dict[int, int]()
        for group in config.groups(axis):
            # ASTRA-sim takes 0 for the group of all ranks.
            its_number = self._groups.setdefault(tuple(ranks[n] for n in group), len(self._groups) + 1)
            number |= dict.fromkeys(group, its_number)
        return tuple(number[n] for n in range(len(ranks)))

    @property
    def numbered_groups(self) -> dict[str, list[int]]:
        """Returns the ranks of all groups that were asked for, by the group's number as text."""
        return {str(number): list(group) for group, number in self._groups.items()}
