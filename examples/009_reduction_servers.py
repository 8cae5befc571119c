"""Reduction servers: how many hosts without accelerators pay for a model, and what a step takes with them.

A cluster of equal hosts gets 0, 1, 2 ... hosts without accelerators, which add up gradients (BytePS). Each time the
model is planned anew. What a gradient of 1 GB takes is compared with what the published formula says of machines that
are all alike, and shown beside what the plan's own gradients take. Nothing is trained, and no device is needed. All
figures are in seconds, and predicted by data sheets; Alpa itself has no such servers.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication.reduction_servers import reduction_split
from alpa_dejavu.planning import PlanningResult, plan_model
from alpa_dejavu.problem import Cluster, Link, ReductionServer
from demo.wide_model import WideModel

RATE = 1.25e9
"""Bytes per second of each machine, in each direction: 10 Gbit/s."""


def main() -> int:
    """Shows a row for each number of servers; returns 1 if one isn't what the formula says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4, help="with a V100 each (default: %(default)s)")
    parser.add_argument("--servers", type=int, default=6, help="at most (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step (default: %(default)s)")
    arguments = parser.parse_args()
    wrong = 0
    print("servers  pay  on servers  1 GB    formula  the plan's  a step   its layers")
    for servers in range(arguments.servers + 1):
        found = planned(arguments.hosts, servers, arguments.batch)
        split = reduction_split(1e9, [RATE] * arguments.hosts, [RATE] * servers)
        expected = published_s(1e9, arguments.hosts, min(servers, arguments.hosts))
        wrong += abs(split.seconds - expected) > 1e-9 * expected
        stages = ", ".join(f"{stage.layers[0]}-{stage.layers[1]} on {len(stage.hosts)}" for stage in found.plan.stages)
        gradients_s = max(stage.synchronisation_s for stage in found.plan.stages)
        print(
            f"{servers:7} {split.paying:4} {split.on_servers:11.0%}  {split.seconds:.4f}  {expected:.4f}   "
            f"{gradients_s:10.4f}  {found.plan.step_s:.4f}   {stages} hosts"
        )
    print(*found.plan.notes, sep="\n")
    return int(wrong > 0)


def planned(hosts: int, servers: int, batch: int) -> PlanningResult:
    """The best plan by data sheets of a model whose table is small, so that its blocks have most of the weights."""
    return plan_model(
        WideModel(vocabulary=4096), cluster(hosts, servers), batch=batch, layers=8, zero=(0,), communication="links",
        calibration="none",
    )  # fmt: skip


def cluster(hosts: int, servers: int) -> Cluster:
    """Hosts of one V100, and servers, all of one rate."""
    base = named_cluster("p3.8xlarge", hosts)
    links = tuple(tuple(base.links[0][0] if a == b else Link(5e-5, RATE) for b in range(hosts)) for a in range(hosts))
    return dataclasses.replace(
        base,
        hosts=tuple(dataclasses.replace(host, num_devices=1) for host in base.hosts),
        links=links,
        reduction_servers=tuple(ReductionServer(f"server-{n}", RATE) for n in range(servers)),
    )


def published_s(num_bytes: float, hosts: int, servers: int) -> float:
    """The optimum of BytePS (OSDI 2020) for machines of one rate, and at most as many servers as hosts."""
    return 2 * hosts * (hosts - 1) * num_bytes / ((hosts**2 + servers * hosts - 2 * servers) * RATE)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    raise SystemExit(main())
