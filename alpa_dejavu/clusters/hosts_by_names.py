"""The cluster of a plan that holds no summary of it, as far as its stages tell."""

from __future__ import annotations

from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters import known_machines
from alpa_dejavu.problem import ClusterSummary, HostSummary, Plan


def hosts_by_names(plan: Plan, num_hosts: int | None = None) -> ClusterSummary:
    """Returns the summary of an old plan's cluster as far as its stages tell: the hosts that they name.

    If the names are those that hosts of a known machine type get in a cluster of `num_hosts`, all hosts of that cluster
    are listed, and are interchangeable. Else only the named hosts are, and each is of a kind of its own. Each host gets
    the most devices that stages use on one host, and a host without a stage gets 0 bytes of memory: neither is known.

    Args:
        plan: a plan from before plans held a summary of their cluster.
        num_hosts: how many hosts the cluster has; None: as many as the stages name.
    """
    devices = plan.devices_of_hosts
    most = max(devices.values())
    names, machine = list(devices), ""
    for known_machine in known_machines():
        every = [f"{known_machine}-{n}" for n in range(num_hosts or len(devices))]
        if devices.keys() <= set(every):
            names, machine = every, known_machine
    memory = {name: stage.memory_limit_bytes for stage in plan.stages for name in stage.hosts}
    hosts = tuple(
        HostSummary(name, most, "", memory.get(name, 0.0), kind=0 if machine else n) for n, name in enumerate(names)
    )
    return ClusterSummary(hosts, machine, cores=usable_cores() if machine == "local-cpu" else None)
