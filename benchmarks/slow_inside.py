"""Plans for hosts whose links within are slower than those between them: what is believed of links, and what it costs.

    python benchmarks/slow_inside.py [--cluster FILE] [--model NAME] [--batch N] [--layers N] [--json OUT]

Nothing is run: such links can't be shaped on one machine, so every second here is simulated. Each row is a plan of the
same search, which was told something else of the links: that communication is free (as Alpa's search has it between
stages), that links within hosts are like those between them, or what the cluster's file says. All are then priced on
the links of the file, each stage on the hosts that its plan names. Where stages share a host's card, their sends are
reckoned with as if each had it alone; the column "cards busy" says for how much of a step the busiest one sends to
other stages, so how seldom two meet. Collectives of stages that take parts of hosts share the cards.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alpa_dejavu._util.units import byte_rate
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.planning import PlanningResult, plan_model
from alpa_dejavu.planning._stage_times import timeline_of
from alpa_dejavu.planning.strategies import Task
from alpa_dejavu.planning.strategies._searched import pipeline_of
from alpa_dejavu.problem import Cluster, Plan, Run
from harness import Results, Table, options, wrong_input_told

CLUSTER = Path(__file__).with_suffix(".json")
SEARCHES = {
    "free communication": ("free", False),
    "alpha-beta, links all alike": ("alpha-beta", True),
    "links of the file": ("links", False),
}


COLUMNS = {
    "planned by": "{planned_by}",
    "believed": "{believed_s:seconds}",
    "on these links": "{step_s:seconds}",
    "over ours": "{over_ours:.2f}x",
    "cards busy": "{cards_busy:.0%}",
    "boundaries inside": "{boundaries_inside} of {boundaries}",
    "stages inside": "{stages_inside}",
    "micro-batches": "{micro_batches}",
    "stages": "{stages}",
}


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Plans by each belief and prints the table; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__)
    parser.add_argument("--cluster", type=Path, default=CLUSTER, help="a file of hosts and links")
    parser.add_argument("--model", default="gpt-1.3b", help="a known name, or module:function")
    parser.add_argument("--batch", type=int, default=64, help="samples of a step")
    parser.add_argument("--layers", type=int, default=16, help="that the model is cut into")
    given = parser.parse_args(arguments)
    cluster = named_cluster(str(given.cluster))
    plans = {name: _row(cluster, given, *belief) for name, belief in SEARCHES.items()}
    ours = plans["links of the file"]["step_s"]
    rows = [{"planned_by": name, "over_ours": row["step_s"] / ours, **row} for name, row in plans.items()]
    within, between = cluster.links[0][0].bytes_per_s, cluster.links[0][1].bytes_per_s
    title = (
        f"{given.model}, batch {given.batch}, on {len(cluster.hosts)} x {cluster.hosts[0].num_devices} devices: "
        f"{byte_rate(within)} within hosts, {byte_rate(between)} between; simulated"
    )
    results = Results(given.json, simulated=True, cluster=cluster.name, plans=plans)
    return results.shown(Table.of(rows, COLUMNS, title))


def _row(cluster: Cluster, given: argparse.Namespace, communication: str, alike: bool) -> dict[str, Any]:
    told = with_links_alike(cluster) if alike else cluster
    planned = plan_model(given.model, told, batch=given.batch, layers=given.layers, communication=communication)
    inside = [any(a in two.hosts for a in one.hosts) for one, two in itertools.pairwise(planned.plan.stages)]
    step_s, busy = on_these_links(planned, cluster)
    return {
        "believed_s": planned.plan.step_s,
        "step_s": step_s,
        "cards_busy": busy,
        "micro_batches": planned.plan.num_micro_batches,
        "stages": _stages(planned.plan),
        "boundaries": len(inside),
        "boundaries_inside": sum(inside),
        "stages_inside": sum(stage.submesh.devices_per_host > 1 for stage in planned.plan.stages),
    }


def with_links_alike(cluster: Cluster) -> Cluster:
    """The cluster as who takes all links for those between the first two hosts believes it to be."""
    between = cluster.links[0][1]
    return dataclasses.replace(cluster, links=tuple((between,) * len(cluster.hosts) for _ in cluster.hosts))


def on_these_links(planned: PlanningResult, cluster: Cluster) -> tuple[float, float]:
    """Seconds of a plan's step, each stage on the hosts that it names; and how long of it the busiest card sends."""
    plan, costs = planned.plan, planned.table.stage_costs
    assert costs is not None, "a table that was priced keeps its prices"
    micro_batch = (plan.batch or 0) // plan.num_micro_batches
    pipeline = pipeline_of(plan, cluster, micro_batch)
    models = CostModels.named(costs.models.latency, "links")
    task = Task(planned.model, micro_batch, cluster, pipeline.samples, models)
    times = task.stage_times(pipeline.stages, micro_batch)
    step_s = timeline_of(times, cluster, Run(pipeline.num_micro_batches)).step_s
    busy: collections.Counter[tuple[int, str]] = collections.Counter()
    for (one, here), (two, there) in itertools.pairwise(zip(pipeline.stages, times, strict=True)):
        if not set(one.hosts) & set(two.hosts):
            ways = (one, two, here.forward_send_s), (two, one, there.backward_send_s)
            for source, target, seconds in ways:
                busy.update(dict.fromkeys([(host, "out") for host in set(source.hosts)], seconds))
                busy.update(dict.fromkeys([(host, "in") for host in set(target.hosts)], seconds))
    return step_s, plan.num_micro_batches * max(busy.values(), default=0.0) / step_s


def _stages(plan: Plan) -> str:
    """How many stages there are of each shape."""
    shapes = [
        f"{stage.submesh.num_hosts}x{stage.submesh.devices_per_host} as {'x'.join(map(str, stage.logical_mesh))}"
        for stage in plan.stages
    ]
    return ", ".join(f"{len(list(alike))} on {shape}" for shape, alike in itertools.groupby(shapes))


if __name__ == "__main__":
    raise SystemExit(main())
