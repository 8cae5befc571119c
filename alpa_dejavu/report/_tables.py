"""The page's tables, as texts with units; the template escapes them."""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import TypedDict

import numpy as np
from typing_extensions import NotRequired

from alpa_dejavu._util import units
from alpa_dejavu.clusters.host_classes import members_of_kinds
from alpa_dejavu.costs.memory import ModelMemory
from alpa_dejavu.planning.given.figures import first_facts
from alpa_dejavu.planning.given.footing import Footing, footings
from alpa_dejavu.planning.given.whole_run import run_facts, sent_rows, whole_run
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.planning.search.runtimes import runtimes_text
from alpa_dejavu.plans.stage_rows import (
    REPORTED,
    StageRow,
    drawn_text,
    folded_cells,
    known_columns,
    plan_text,
)
from alpa_dejavu.plans.table import fullest_parts
from alpa_dejavu.problem import Cluster, DrawnSeconds, Link, Plan
from alpa_dejavu.simulation.breakdown import AS_FAST
from alpa_dejavu.simulation.sensitivity import alike, sensitivities, slope_texts, tells
from alpa_dejavu.simulation.step import Timeline


class ReportTable(TypedDict):
    """A table of text for the report page: the heads of its columns, and rows of as many cells."""

    heads: list[str]
    rows: list[list[str]]
    kept: NotRequired[Sequence[str]]  # the heads of the columns that a narrow page shows unasked


def facts(planned: PlanningResult, measured: Timeline | None) -> list[tuple[str, str]]:
    """Returns the figures of a plan that are read first, and some that only its simulation tells, each with its name;
    of a part of a figure the name begins with that of the whole.
    """
    plan, timeline = planned.plan, planned.timeline
    bubbles = f"{100 * np.mean(timeline.bubble_shares):.1f} % (mean of the stages)"
    pipelined = ("schedule", plan.schedule.replace("_", " ")), ("waiting in bubbles", bubbles)
    first = [(f"memory: {name.strip()}" if name[0] == " " else name, text) for name, text in first_facts(plan, planned)]
    return [
        *first,
        *([] if measured is None else [("measured step", units.seconds(measured.step_s))]),
        ("model FLOP of a step", units.flop(planned.model_flop)),
        *(pipelined if len(plan.stages) > 1 else ()),
        ("planned in", f"{units.seconds(plan.total_planning_s)}"),
    ]


def notes(plan: Plan) -> list[tuple[str, str]]:
    """Returns what is to be said of a plan in sentences, as pairs of what it is about, or "", and the sentence."""
    return [
        ("runs on", runtimes_text(plan)),
        *([] if plan.without_a_host is None else [("if a host is lost", plan.without_a_host)]),
        *(("", note) for note in plan.notes),
    ]


def stage_table(planned: PlanningResult, measured: Timeline | None) -> ReportTable:
    """Returns a table of figures for each run of equal stages: predicted, and measured where given."""
    timeline = planned.timeline
    rows = [
        StageRow(
            n, stage, timeline.busy_shares[on], timeline.bubble_shares[on], timeline.stages[n],
            None if measured is None else measured.stages[n],
        )
        for n, (stage, on) in enumerate(zip(planned.plan.stages, timeline.schedule.device_of, strict=True))
    ]  # fmt: skip
    columns = known_columns(REPORTED, rows)
    kept = "stage", "layers", "compute", "memory", "measured to predicted"
    return {"heads": [column.name for column in columns], "rows": folded_cells(columns, rows), "kept": kept}


def grounds(planned: PlanningResult) -> Sequence[Footing]:
    """Returns what a plan's predicted seconds rest on; nothing of a plan whose table keeps no prices."""
    if planned.table.stage_costs is None:
        return ()
    return footings(planned.table, planned.space, planned.choices, planned.run)


def ground_rows(parts: Sequence[Footing]) -> ReportTable:
    """Returns a table of what each kind of work rests on, its share of the seconds, and how far off it may be."""
    rows = [[part.work, part.rests_on, f"{100 * part.share:.0f} %", f"{100 * part.spread:.0f} %"] for part in parts]
    return {"heads": ["work", "rests on", "share", "spread"], "rows": rows}


def memory_rows(plan: Plan) -> ReportTable:
    """Returns a table of what a device of the plan's fullest stage keeps, part by part."""
    fullest = fullest_parts(plan)
    total = sum(num_bytes for _, num_bytes in fullest.parts)
    rows = [[name, units.size(num_bytes)] for name, num_bytes in fullest.parts]
    ends = [["together", units.size(total)], ["the device has", units.size(fullest.limit_bytes)]]
    return {"heads": [f"stage {fullest.stage}", "on each device"], "rows": [*rows, *ends]}


def whole_table(planned: PlanningResult, steps: int) -> ReportTable:
    """Returns a table of what a training of so many steps takes: time, devices, money, memory, and bytes by link."""
    run = whole_run(planned, steps)
    sent = [[f"sent from {a} to {b}", units.traffic(num_bytes)] for a, b, num_bytes in sent_rows(run)]
    return {"heads": ["what", "in all"], "rows": [*map(list, run_facts(run)), *sent]}


def runner_up_rows(planned: PlanningResult) -> ReportTable:
    """Returns a table of a chosen plan and the next best ones, and why these lose; no rows if nothing was compared."""
    if not planned.runners_up:
        return {"heads": [], "rows": []}
    rows = [["1", plan_text(planned.plan), units.seconds(planned.plan.step_s), "", "the plan of this page"]]
    for rank, other in enumerate(planned.runners_up, 2):
        slower = other.plan.step_s / planned.plan.step_s - 1
        change = f"{slower:+.2%}" if abs(slower) > AS_FAST else ""
        rows.append([str(rank), plan_text(other.plan), units.seconds(other.plan.step_s), change, other.why])
    heads = ["rank", "plan", "step", "slower by", "why it loses"]
    return {"heads": heads, "rows": rows, "kept": ("rank", "step", "why it loses")}


def sensitivity_rows(plan: Plan) -> ReportTable:
    """Returns a table of how a step depends on the speed of devices, links and stages; what helps most is first."""
    rows = [[what, *slope_texts(together)] for what, together in alike(sensitivities(plan)) if tells(together)]
    heads = ["what", "1 % faster saves", "1 % slower costs", "step at twice the speed"]
    return {"heads": heads, "rows": rows, "kept": heads[:2]}


def layer_rows(planned: PlanningResult) -> ReportTable:
    """Returns a table of the layers' operations, parameters and activations before sharding, and their seconds."""
    memory, stage_of, drawn = ModelMemory.of(planned.model), dict[int, int](), dict[int, DrawnSeconds]()
    for n, stage in enumerate(planned.plan.stages):
        layers = range(stage.layers[0], stage.layers[1] + 1)
        stage_of |= dict.fromkeys(layers, n)
        drawn |= zip(layers, stage.drawn.layers, strict=False) if stage.drawn else ()
    rows = [
        [
            str(n), layer.name, str(stage_of.get(n, "–")), units.flop(layer.forward.total_flop),
            units.flop(layer.backward.total_flop), units.size(memory.parameters[n, n]),
            units.size(memory.activations[n, n]), drawn_text(drawn.get(n)),
        ]
        for n, layer in enumerate(planned.model.layers)
    ]  # fmt: skip
    heads = ["layer", "name", "stage", "forward", "backward", "parameters", "kept for backward", "mean ± deviation"]
    runs = [list(run) for _, run in itertools.groupby(rows, lambda row: [_NUMBERS.sub("", row[1]), *row[2:]])]
    folded = [[_ends(row[0] for row in run), _ends(row[1] for row in run), *run[0][2:]] for run in runs]
    return {"heads": heads, "rows": folded, "kept": ("layer", "stage", "forward", "kept for backward")}


_NUMBERS = re.compile(r"\d+|\(.*\)")
"""What differs in the names of alike layers and stages: numbers, and where they are."""


def _ends(names: Iterable[str]) -> str:
    """Returns the first and the last of several names as a text; the only one as it is."""
    first, *others = dict.fromkeys(names)
    return f"{first}-{others[-1]}" if others and first.isdecimal() else " to ".join([first, *others[-1:]])


def planning_rows(plan: Plan) -> ReportTable:
    """Returns a table of the seconds that each step of the planning took, and of their sum."""
    rows = [[step, units.seconds(time)] for step, time in plan.planning_s.items()]
    return {"heads": ["step of the planning", "time"], "rows": [*rows, ["all", units.seconds(plan.total_planning_s)]]}


def origins(planned: PlanningResult) -> ReportTable:
    """Returns a table of the figures of devices and links that the predictions rest on, and where they are from."""
    rows = []
    devices = [host.device for host in planned.cluster.hosts]
    names = collections.Counter(device.name for device in devices)
    for device in (next(device for device in devices if device.name == name) for name in names):
        rates = ", ".join(f"{dtype} {units.flop_rate(rate)}" for dtype, rate in device.flop_per_s.items())
        memory = f"{units.size(device.memory_bytes)} at {units.byte_rate(device.memory_bytes_per_s)}"
        rows.append([f"{device.name} ({names[device.name]} hosts)", f"{rates}; {memory}", device.origin or "not said"])
    places = collections.defaultdict[str, list[str]](list)
    for where, link in _links(planned.cluster).items():
        places[f"{units.byte_rate(link.bytes_per_s)}, {units.seconds(link.latency_s)}"].append(where)
    cluster = f"the cluster {planned.cluster.name}"
    rows += [[f"links {'; '.join(among)}", text, cluster] for text, among in places.items()]
    rows.append(["step time", units.seconds(planned.timeline.step_s), "event simulation of the schedule"])
    return {"heads": ["what", "figures", "where from"], "rows": rows}


def _links(cluster: Cluster) -> dict[str, Link]:
    """Returns one link of each kind; of unlike hosts, by the first host of each kind and the number of such hosts."""
    links, members = cluster.links, members_of_kinds(cluster)
    if len(members) == 1:
        return {"within a host": links[0][0]} | ({"between hosts": links[0][1]} if len(links) > 1 else {})
    more = [f" and {len(hosts) - 1} alike" if hosts[1:] else "" for hosts in members]
    names = [cluster.hosts[hosts[0]].name + others for hosts, others in zip(members, more, strict=True)]
    links_of = {f"within {name}": links[hosts[0]][hosts[0]] for name, hosts in zip(names, members, strict=True)}
    for a, sending in enumerate(members):
        for b, receiving in enumerate(members):
            if a != b:
                links_of[f"from {names[a]} to {names[b]}"] = links[sending[0]][receiving[0]]
            elif sending[1:]:
                links_of[f"among {names[a]}"] = links[sending[0]][sending[1]]
    return links_of
