"""Prints plans as tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from alpa_dejavu._util import units
from alpa_dejavu._util.columns import Head
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.cli.output import Pages
from alpa_dejavu.cli.table import Table, is_wide, new_table
from alpa_dejavu.layers.models import model_title
from alpa_dejavu.planning import PlanningResult, RunnerUp
from alpa_dejavu.planning.given.figures import first_facts
from alpa_dejavu.planning.given.footing import Footing, footings
from alpa_dejavu.planning.result import PricedPlan
from alpa_dejavu.planning.search.runtimes import runtimes_text
from alpa_dejavu.plans.stage_rows import (
    LEAVE,
    PLANNED,
    Column,
    StageRow,
    cells,
    folded_cells,
    known_columns,
    plan_text,
    stage_rows,
)
from alpa_dejavu.plans.table import planning_text
from alpa_dejavu.problem import Cluster, Plan, StepCorrection
from alpa_dejavu.schedules import Schedule

if TYPE_CHECKING:
    from alpa_dejavu.planning.rivals import StrategyPlan
    from alpa_dejavu.planning.rivals.stages import Pipeline


Facts: TypeAlias = Sequence[tuple[str, str]]
"""Texts, each with its name."""


def stage_table(columns: Sequence[Column], rows: Sequence[StageRow]) -> Table:
    """Returns a table with a row for each run of equal stages of a plan; with `--wide` for each stage."""
    table = Table([Head(column.name, "figure" if column.is_figure else "name") for column in columns], LEAVE)
    for row in cells(columns, rows) if is_wide() else folded_cells(columns, rows):
        table.add_row(*row)
    return table


def runners_up_table(runners_up: Sequence[RunnerUp]) -> Table:
    """Returns a table with a row for each plan that was nearly chosen: its time, and why it loses."""
    table = new_table(("next best",), ("iteration",), ("plan", "why it loses"))
    for rank, other in enumerate(runners_up, 2):
        table.add_row(str(rank), units.seconds(other.plan.step_s), plan_text(other.plan), other.why)
    return table


def front_table(front: Sequence[PricedPlan]) -> Table:
    """Returns a table of the Pareto front: a row for each plan for which no other is both as fast and as cheap."""
    table = new_table(("hosts used",), ("iteration", "price of a step"), ("which hosts",))
    for priced in front:
        figures = units.seconds(priced.plan.step_s), units.price(priced.price)
        table.add_row(str(len(priced.hosts)), *figures, name_ranges(priced.hosts))
    return table


def print_other_schedules(planned: PlanningResult, to: Pages) -> None:
    """Prints what each schedule would be worth on a plan's submeshes, and who can run it, if the step trains."""
    if not planned.model.training:
        to.fact("other schedules", "the step takes no gradients: only the inference schedule is one for it")
        return
    if len(planned.plan.stages) == 1:
        to.fact("other schedules", "none is worth anything: the plan has one stage")
        return
    from alpa_dejavu.planning.given.other_schedules import other_schedules

    factor = planned.plan.step_s / planned.plan.uncorrected_s
    schedules = list(other_schedules(planned))
    texts = ("runs on", "but")[: 1 + any(schedule.why for schedule in schedules)]
    table = new_table(("other schedules", "chunks"), ("iteration", "saves", "memory"), texts)
    for schedule in schedules:
        if schedule.step_s is None or schedule.memory_bytes is None:
            table.add_row(schedule.name, str(schedule.chunks), "", "", "", "", schedule.why)
            continue
        saved = f"{100 * (1 - schedule.step_s / planned.plan.uncorrected_s):.1f} %"
        figures = units.seconds(schedule.step_s * factor), saved, units.size(schedule.memory_bytes)
        words = (" ".join(schedule.runtimes), schedule.why)[: len(texts)]
        table.add_row(schedule.name, str(schedule.chunks), *figures, *words)
    to.print(table)


def print_improved_order(planned: PlanningResult, to: Pages) -> Schedule:
    """Prints what improving the order of a plan's passes saves, and returns the order."""
    from alpa_dejavu.planning.given.other_schedules import improved_order

    improved = improved_order(planned)
    factor = planned.plan.step_s / planned.plan.uncorrected_s
    saved, own = 100 * (1 - improved.step_s / planned.plan.uncorrected_s), planned.plan.schedule
    to.fact(
        "order of passes",
        f"{units.seconds(improved.step_s * factor)} a step, {saved:.1f} % less than {own}; no order is over "
        f"{100 * improved.gap:.1f} % shorter",
    )
    return improved.schedule


def print_plan(plan: Plan, to: Pages, planned: PlanningResult | None = None, more: Facts = ()) -> None:
    """Prints a plan's model and cluster, its figures that are read first and further ones, how sure they are, and a
    table of its stages; `planned` is its result, where it is there.
    """
    schedule = "" if len(plan.stages) == 1 else f", schedule {plan.schedule}"
    layers, devices = units.counted(plan.num_layers, "layer"), units.counted(plan.num_devices, "device")
    to.print(f"{model_title(plan.model)} in {layers} on {plan.cluster}, {devices}{schedule}")
    sure = [] if plan.confidence is None else plan.confidence.facts
    for name, text in (*first_facts(plan, planned), *more, *sure):
        to.fact(name, text)
    rows = stage_rows(plan)
    to.print(stage_table(known_columns(PLANNED, rows), rows))


def print_said(plan: Plan, to: Pages) -> None:
    """Prints what the loss of a host costs, and the plan's notes."""
    if plan.without_a_host is not None:
        to.fact("if a host is lost", plan.without_a_host)
    for note in plan.notes:
        to.print(note)


def print_planned(planned: PlanningResult, to: Pages, verb: str = "planned", fits: str = "") -> None:
    """Prints a planning result: the plan, its figures, and the next best; `verb` names what took the seconds, and
    `fits` says what would fit into memory where the plan doesn't.
    """
    plan = planned.plan
    more = [] if plan.correction is None else [correction_fact(plan, plan.correction)]
    print_plan(plan, to, planned, [*([("what would fit", fits)] if fits else []), *more])
    to.print(footing_table(footings(planned.table, planned.space, planned.choices, planned.run)))
    to.fact("runs on", runtimes_text(plan))
    print_said(plan, to)
    if plan.planning_s:
        to.fact(f"{verb} in", planning_text(plan))
    if planned.runners_up:
        to.print(runners_up_table(planned.runners_up))
    if planned.front:
        to.print(front_table(planned.front))


def print_pipelines(unlike: StrategyPlan, cluster: Cluster, to: Pages) -> None:
    """Prints a strategy's unlike pipelines, a row for each, and the figures of the whole step."""
    layers = unlike.pipelines[0].stages[-1].last + 1
    to.print(
        f"{units.counted(len(unlike.pipelines), 'pipeline')} of {units.counted(layers, 'layer')} on {cluster.name} "
        f"({cluster.num_devices} devices), batch {unlike.batch}: chosen by {unlike.strategy}"
    )
    table = new_table(("pipeline",), ("micro-batches", "computes"), ("hosts", "layers (data, tensor parallel)"))
    for n, (pipeline, computing_s) in enumerate(zip(unlike.pipelines, unlike.computing_s, strict=True)):
        hosts = dict.fromkeys(cluster.hosts[host].name for stage in pipeline.stages for host in stage.hosts)
        shares = f"{pipeline.num_micro_batches} of {pipeline.micro_batch}"
        table.add_row(str(n), shares, units.seconds(computing_s), name_ranges(hosts), _cut_text(pipeline))
    to.print(table)
    to.fact("iteration time", units.seconds(unlike.step_s))
    to.fact("throughput", units.sample_rate(unlike.samples_per_s))
    for note in unlike.notes:
        to.print(note)


def _cut_text(pipeline: Pipeline) -> str:
    """Each stage's layers, its data- and tensor-parallel devices, and its remat."""
    return ", ".join(
        f"{stage.first}-{stage.last} ({stage.config.data_parallel}, {stage.config.tensor_parallel})"
        + (" remat" if stage.config.remat == "layer" else "")
        for stage in pipeline.stages
    )


def footing_table(parts: Sequence[Footing]) -> Table:
    """Returns a table of what predicted seconds rest on, by kind of work: its share, and how far off it may be."""
    table = new_table(("work", "rests on"), ("share", "spread"))
    for part in parts:
        table.add_row(part.work, part.rests_on, f"{100 * part.share:.0f} %", f"{100 * part.spread:.0f} %")
    return table


def correction_fact(plan: Plan, by: StepCorrection) -> tuple[str, str]:
    """Returns by how many past runs a predicted step was corrected, by how much, and how sure that is."""
    low, high = (
        units.seconds(plan.uncorrected_s * by.factor * math.exp(side * REACH_90 * by.spread)) for side in (-1, 1)
    )
    return (
        f"corrected by {units.counted(by.runs, 'run')}",
        f"{by.factor:.3f} times {units.seconds(plan.uncorrected_s)}; 90 % interval {low} to {high}; {by.own_runs} of "
        "this model on this cluster",
    )
