"""`alpa-dejavu estimate`."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import DOES_NOT_FIT, PREDICTIONS, Command, option
from alpa_dejavu.cli.files import check_outputs, takes_stdout, write_outputs
from alpa_dejavu.cli.models import model_text, other_model_option, training_options
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import CLUSTER, PLAN_FILE, output_options, pricing_options, trust_option
from alpa_dejavu.cli.tables import print_planned
from alpa_dejavu.cli.working import working
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.plans.table import lacking


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu estimate plan.json",
        "alpa-dejavu estimate plan.json --cluster p4d.24xlarge --html other.html",
    ),
    rests_on=PREDICTIONS,
)
@click.argument("plan_path", type=PLAN_FILE, metavar="PLAN.json")
@other_model_option
@training_options
@option("--cluster", group=CLUSTER, help="Cluster instead of the plan's: a machine, or a file.")
@trust_option
@pricing_options
@output_options
@collector_paused()
def estimate(
    plan_path: pathlib.Path,
    model: str | None,
    training: Mapping[str, Any],
    trust_model: bool,
    cluster: str | None,
    json_path: pathlib.Path | None,
    python_path: pathlib.Path | None,
    html_path: pathlib.Path | None,
    trace_path: pathlib.Path | None,
    **pricing: Any,
) -> None:
    """Predicts the step time and memory of a given plan; its model is traced, or taken from the cache.

    The exit code is 3 where the plan doesn't fit into memory.
    """
    paths = (json_path, python_path, html_path, trace_path)
    check_outputs(*paths)
    plan = read_plan(plan_path)
    if training:
        model = model_text(plan.model if model is None else model, training=training)
    with working(f"estimating {plan_path}"):
        from alpa_dejavu.planning.changed.kept_task import kept_cluster
        from alpa_dejavu.planning.given.fitting import what_fits
        from alpa_dejavu.planning.given.plan_estimate import PlanEstimator

        on = cluster or kept_cluster(plan, plan_path)
        estimator = PlanEstimator(plan, model, on, trust_model=trust_model, **pricing)
        planned = estimator.estimate(plan)
        fits = what_fits(plan, estimator) if lacking(planned.plan) else ""
    to, written = console(takes_stdout(*paths)), write_outputs(planned, *paths)
    print_planned(planned, to, "estimated", fits)
    to.fact("the file says", units.seconds(plan.step_s))
    to.wrote(written)
    if lacking(planned.plan):
        click.get_current_context().exit(DOES_NOT_FIT)
