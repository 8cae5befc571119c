"""`alpa-dejavu profile`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu.calibration.history import history_path
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.files import PAGE, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.models import other_model_option
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import FILES, HISTORY, PLAN_FILE, calibration_option, local_option, trust_option
from alpa_dejavu.cli.ray_cluster import ray_cluster
from alpa_dejavu.cli.table import Table
from alpa_dejavu.cli.tables import print_plan, stage_table
from alpa_dejavu.cli.working import working
from alpa_dejavu.layers import trusted_model
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.plans.stage_rows import PROFILED, StageRow
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.calibration.measurement import MeasuredPlan
    from alpa_dejavu.planning.changed.straggler import Straggler
    from alpa_dejavu.simulation.step import StageTimes


@click.command(
    cls=Command,
    examples=("alpa-dejavu profile plan.json --local 4", "alpa-dejavu profile plan.json --steps 20 --html run.html"),
    rests_on="Measured seconds are those of Alpa's workers on Ray's cluster.",
)
@click.argument("plan_path", type=PLAN_FILE, metavar="PLAN.json")
@other_model_option
@trust_option
@option("--steps", type=click.IntRange(min=1), default=10, show_default=True, help="Steps to measure.")
@local_option
@option("--html", "html_path", group=FILES, type=PAGE, metavar="FILE", help="Write a report with the measurements.")
@option("--history", type=HISTORY, metavar="FILE", help="File of past runs to append to.  [default: the user's]")
@option("--no-history", is_flag=True, help="Append to no file of past runs.")
@calibration_option
def profile(
    plan_path: pathlib.Path,
    model: str | None,
    trust_model: bool,
    steps: int,
    local: int | None,
    html_path: pathlib.Path | None,
    history: pathlib.Path | None,
    no_history: bool,
    calibration: str | None,
) -> None:
    """Runs a plan on Ray's cluster, and compares with predictions.

    The measurements are appended to the history, which `alpa-dejavu history` shows and `plan --history` uses.
    """
    from alpa_dejavu.calibration import check_choice
    from alpa_dejavu.calibration.history import Store
    from alpa_dejavu.planning.changed.deviation import past_run

    store = None if no_history else Store(history_path(history))
    if store is not None:
        store.check()
    check_outputs(html_path)
    plan = read_plan(plan_path)
    chosen = trusted_model(plan, model, trust_model)
    # A run takes minutes: what can't be read is to be said before it.
    check_choice(calibration, "auto", "auto")
    with working(f"running {plan_path}"), ray_cluster(local):
        from alpa_dejavu.alpa import connection
        from alpa_dejavu.alpa import profile as measure
        from alpa_dejavu.planning.given.plan_estimate import PlanEstimator

        with connection(plan) as cluster:
            estimator = PlanEstimator(plan, chosen, cluster, calibration=calibration)
            planned = estimator.estimate(plan)
            measured = measure(plan, planned.timeline.stages, steps, chosen)
    to = console(takes_stdout(html_path))
    print_plan(planned.plan, to)
    to.print(measured_table(planned.plan, planned.timeline.stages, measured))
    facts = measured_facts(plan, planned.plan, measured)
    for name, text in (*facts, *straggler_facts(plan_path, planned.plan, measured.computing_steps_s)):
        to.fact(name, text)
    if store is not None:
        by = estimator.prices
        runs = store.append(past_run(planned, measured, by.models.latency, by.models.communication, by.calibration))
        to.print(f"appended to {store.path}, which has {units.counted(runs, 'run')} now; --no-history leaves it out")
    if html_path is not None:
        from alpa_dejavu.report import html_report

        to.wrote(write_output(html_path, html_report(planned, measured.timeline)))


def measured_table(plan: Plan, predicted: Sequence[StageTimes], measured: MeasuredPlan) -> Table:
    """Returns a table of predicted and measured seconds of each stage, for a micro-batch and once a step: those for
    which its worker is busy with a forward or backward, starting, computing, sending and receiving it.
    """
    stages = zip(plan.stages, predicted, measured.stages, measured.computing_s, strict=True)
    rows = [
        StageRow(n, stage, predicted=ours, measured=theirs, computing_s=computing)
        for n, (stage, ours, theirs, computing) in enumerate(stages)
    ]
    return stage_table(PROFILED, rows)


def measured_facts(in_file: Plan, plan: Plan, measured: MeasuredPlan) -> list[tuple[str, str]]:
    """Returns a step's time as measured, predicted, and simulated from the measured stages, each with its name."""
    ratio, simulated = measured.step_s / plan.step_s, measured.simulated_s / measured.step_s
    low, high = min(measured.steps_s), max(measured.steps_s)
    return [
        (
            "iteration time",
            f"measured {units.seconds(measured.step_s)} (median of {len(measured.steps_s)} steps, "
            f"{units.span((low, high), units.seconds)})",
        ),
        ("predicted", f"{units.seconds(plan.step_s)}: measured is {ratio:.2f} times that"),
        ("the file says", units.seconds(in_file.step_s)),
        ("simulated from measured", f"{units.seconds(measured.simulated_s)}: {simulated:.2f} times the measured step"),
    ]


_LEAST_STEPS = 5


def straggler_facts(path: pathlib.Path, plan: Plan, steps_s: Sequence[Sequence[float]]) -> list[tuple[str, str]]:
    """Returns texts, each with its name, on which hosts of a measured run are slow, and which plan would now be chosen.

    `steps_s` has the seconds that each of S stages computed in each step, shape (steps, S). There are no texts for
    fewer than five steps, or a stage that seems to compute nothing.
    """
    from alpa_dejavu.planning.changed.straggler import stragglers

    if len(steps_s) < _LEAST_STEPS or min(map(min, steps_s)) <= 0:
        return []
    slow = stragglers(plan, steps_s, least_steps=_LEAST_STEPS)
    return [*(("straggler", str(straggler)) for straggler in slow), *(_around(path, plan, slow) if slow else [])]


def _around(path: pathlib.Path, plan: Plan, slow: Sequence[Straggler]) -> list[tuple[str, str]]:
    from alpa_dejavu.planning.changed.kept import kept_path, read_kept
    from alpa_dejavu.planning.changed.straggler import planned_around
    from alpa_dejavu.problem import NoPlanError

    if not kept_path(path).exists():
        return []
    options = " ".join(f"--slow {host}={straggler.factor:.2f}" for straggler in slow for host in straggler.hosts)
    try:
        planned = planned_around(plan, read_kept(path), slow)
    except (NoPlanError, ValueError) as error:
        return [("planned around it", f"no: {error}")]
    moved = f"after {planned.moves.text}"
    what = f"{units.seconds(planned.plan.step_s)} a step, {moved}: alpa-dejavu replan {path} {options}"
    return [("planned around it", what)]
