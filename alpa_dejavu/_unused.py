"""Hosts that a plan leaves unused, and what using them would cost."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.problem import Cluster
from alpa_dejavu.search import Candidate, simulated, sliced
from alpa_dejavu.slicing import Slicer

__all__ = ["unused_hosts"]


def unused_hosts(candidate: Candidate, cluster: Cluster, slicer: Slicer, factor: float = 1.0) -> tuple[str, ...]:
    """A sentence on them; none where all hosts are alike or used. Seconds are multiplied by `factor`."""
    if candidate.space.hosts is None:
        return ()
    used = {host for hosts in candidate.placed(cluster) for host in hosts}
    unused = [host.name for n, host in enumerate(cluster.hosts) if n not in used]
    if not unused:
        return ()
    problem = candidate.table.slicing_problem(cluster, candidate.space, candidate.run)
    every = sliced(dataclasses.replace(problem, devices="exactly"), candidate.space, cluster, slicer)
    said = "no plan that uses all devices was found"
    if every.found:
        other = simulated(dataclasses.replace(candidate, slicing=every, hosts=None), cluster)
        now = f"this one {candidate.step_s * factor:.4g} s"
        said = f"the best plan found that uses all devices takes {other.step_s * factor:.4g} s, {now}"
    return (f"{', '.join(unused)} {'is' if len(unused) == 1 else 'are'} left unused: {said}",)
