"""Placement over unlike links: the stage that exchanges most gets the fast link, wherever the cluster file has it.

Six hosts of one device each, three with a V100 and three with a T4, have links of 10 Gbit/s, but for two pairs with 100
Gbit/s, which aren't neighbours in the file. The model has a large table of embeddings. Its plan is priced as it is, and
with its stages on the hosts in every other order: nothing is trained, and no device is needed. All figures are
predicted by data sheets.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from tqdm import tqdm

from alpa_dejavu import plan_table
from alpa_dejavu.clusters import read_cluster
from alpa_dejavu.planning import GivenStage, PlanningResult, estimate, given_stages, plan_model
from alpa_dejavu.problem import Cluster, Plan
from demo.wide_model import WideModel

CLUSTER = Path(__file__).parent / "demo" / "unlike_links.json"
LAYERS, COMMUNICATION, CALIBRATION = 8, "links", "none"

Hosts = tuple[tuple[str, ...], ...]
"""The names of each stage's hosts."""


def main() -> int:
    """Shows the plan, and what its stages take on other hosts; returns 1 if they take less there."""
    arguments = _arguments()
    cluster = read_cluster(arguments.cluster)
    print(f"Planning a model with a table of embeddings on {cluster.name} ...")
    found = plan_model(
        WideModel(), cluster, batch=arguments.batch, layers=LAYERS, zero=(0,), communication=COMMUNICATION,
        calibration=CALIBRATION,
    )  # fmt: skip
    print(plan_table(found.plan))
    each, own = seconds_by_placement(found), tuple(stage.hosts for stage in found.plan.stages)
    slow = exchanged_s(found)
    most = max(range(len(own)), key=lambda n: slow[n])
    elsewhere = [on for on in each if set(on[most]) != set(own[most])]
    least_s = min(each.values())
    rows = {
        "as planned": own,
        f"best of all {len(each)}": min(each, key=lambda on: each[on]),
        f"stage {most} elsewhere": min(elsewhere, key=lambda on: each[on], default=own),
        "in the file's order": next(iter(each)),
        f"worst of all {len(each)}": max(each, key=lambda on: each[on]),
    }
    said = ", ".join(f"stage {n} for {seconds:.4f} s" for n, seconds in enumerate(slow))
    print(f"Over the slowest link alone the devices of a stage would exchange, in a step: {said}")
    for name, hosts in rows.items():
        on = ", ".join(" ".join(stage) for stage in hosts)
        step_s = each.get(hosts, found.plan.step_s)
        print(f"{name:<22} {step_s:.4f} s a step, {step_s / least_s:.3f} of the best: {on}")
    return 0 if found.plan.step_s <= least_s * (1 + 1e-9) else 1


def exchanged_s(found: PlanningResult) -> list[float]:
    """The seconds a step in which the devices of each stage would exchange, were all links the slowest one."""
    cluster = found.cluster
    slowest = cluster.slowest_link(range(len(cluster.hosts)))
    links = tuple(
        tuple(link if a == b else slowest for b, link in enumerate(row)) for a, row in enumerate(cluster.links)
    )
    plan = _priced(found, given_stages(found.plan), dataclasses.replace(cluster, links=links))
    return [plan.num_micro_batches * stage.collective_s + stage.synchronisation_s for stage in plan.stages]


def placements(stages: Sequence[GivenStage], hosts: Sequence[str]) -> Iterator[Hosts]:
    """Every choice of hosts for all stages, whole hosts each; those in the order of `hosts` come first."""
    ends = list(itertools.accumulate((stage.submesh.num_hosts for stage in stages), initial=0))
    for chosen in itertools.permutations(hosts, ends[-1]):
        yield tuple(chosen[start:end] for start, end in itertools.pairwise(ends))


def seconds_by_placement(found: PlanningResult) -> dict[Hosts, float]:
    """What a step takes with the plan's stages on every choice of hosts, each priced as a given plan."""
    stages = given_stages(found.plan)
    every = list(placements(stages, [host.name for host in found.cluster.hosts]))
    return {
        on: _priced(found, [dataclasses.replace(one, hosts=its) for one, its in zip(stages, on, strict=True)]).step_s
        for on in tqdm(every, "Placements", disable=None)
    }


def _priced(found: PlanningResult, stages: Sequence[GivenStage], cluster: Cluster | None = None) -> Plan:
    return estimate(
        found.model, cluster or found.cluster, found.run, stages,
        batch=found.plan.batch, communication=COMMUNICATION, calibration=CALIBRATION,
    ).plan  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", type=Path, default=CLUSTER, help="a cluster file (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="samples of a step (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    raise SystemExit(main())
