"""Ray's nodes by the names that plans have for hosts: those of the first plan, and others that joined since."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

from alpa_dejavu.alpa.ray_cluster import alpa_hosts, host_names, machine_name
from alpa_dejavu.problem import Plan


@final
class Nodes:
    """The nodes of a training's hosts. Names stay with their nodes, while Alpa's change with each node that is gone."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self._joined: dict[str, str] = {}

    @property
    def named(self) -> Mapping[str, str]:
        """Returns Ray's ids of the nodes of hosts that plans may name; empty before the first plan."""
        return {**self._named, **self._joined}

    def on_their_hosts(self, plan: Plan) -> Plan:
        """Returns a plan with its hosts' names in Alpa now. Raises RuntimeError if the first plan is for others."""
        from alpa.device_mesh import get_global_virtual_physical_mesh

        mesh = get_global_virtual_physical_mesh()
        if not self._named:
            self._named = _of_first(plan, mesh)
        for host in plan.devices_of_hosts.keys() & self._joined.keys():
            self._named[host] = self._joined.pop(host)
        named = zip(alpa_hosts(mesh), host_names(mesh), strict=True)
        now = {host.info["NodeID"]: name for host, name in named}
        names = {before: now[node] for before, node in self._named.items() if node in now}
        stages = [
            dataclasses.replace(stage, hosts=tuple(names.get(host, host) for host in stage.hosts))
            for stage in plan.stages
        ]
        return dataclasses.replace(plan, stages=tuple(stages))

    def living(self) -> dict[str, str]:
        """Returns Ray's ids of the nodes of those hosts that are there, by the hosts' names."""
        alive = {node["NodeID"] for node in _living()}
        return {host: node for host, node in self._named.items() if node in alive}

    def lost(self) -> list[str]:
        """Returns the hosts whose nodes Ray counts as dead; none where the program isn't connected to Ray."""
        import ray

        if not ray.is_initialized():
            return []
        living = self.living()
        return [host for host in self._named if host not in living]

    def joined(self) -> dict[str, int]:
        """Returns the hosts that no plan has used yet, with the number of their devices; one on a lost host's machine
        has its name.
        """
        from alpa.global_env import global_config

        lost: dict[str, int] = {}
        names = {node: name for name, node in self._joined.items()}
        for node in _living():
            count = int(node["Resources"].get(global_config.ray_accelerator_name, 0))
            if not count or node["NodeID"] in self._named.values():
                continue
            name = names.get(node["NodeID"]) or self._name(machine_name(node))
            self._joined[name] = node["NodeID"]
            lost[name] = count
        return lost

    def _name(self, machine: str) -> str:
        names = {*self._named, *self._joined}
        back = [name for name in self.lost() if name == machine or name.rpartition(":")[0] == machine]
        free = [name for name in back if name not in self._joined]
        new = (f"{machine}:{n}" for n in range(len(names) + 1) if f"{machine}:{n}" not in names)
        alone = not any(name == machine or name.rpartition(":")[0] == machine for name in names)
        return free[0] if free else machine if alone else next(new)


def on_node(node: str) -> Any:
    """Returns the scheduling by which Ray runs something on a node, given by Ray's id of it, and nowhere else."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node, soft=False)


def _living() -> list[Mapping[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _of_first(plan: Plan, mesh: Any) -> dict[str, str]:
    """Returns Ray's ids of a plan's nodes by the hosts' names: by Ray's names of the nodes, or by both orders."""
    ids = [host.info["NodeID"] for host in alpa_hosts(mesh)]
    nodes = dict(zip(host_names(mesh), ids, strict=True))
    used = plan.devices_of_hosts
    if used.keys() <= nodes.keys():
        return nodes
    # Of an old plan its contingencies say in which order the cluster has them.
    planned = list(plan.contingencies) if plan.hardware is None else [host.name for host in plan.hardware.hosts]
    names = planned if len(planned) == len(ids) else [host for host in planned if host in used]
    names += [host for host in used if host not in names]
    if len(names) != len(ids):
        raise RuntimeError(f"the plan is for the hosts {names}, but Alpa has {len(ids)}; plan for this cluster")
    return dict(zip(names, ids, strict=True))
