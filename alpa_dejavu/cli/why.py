"""`alpa-dejavu why`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.output import Pages, console
from alpa_dejavu.cli.parameters import PLAN_FILE
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.cli.traces import traced_steps
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.problem import Cluster, Plan
    from alpa_dejavu.report.slow_step import SlowStep


@click.command(
    cls=Command,
    examples=("alpa-dejavu why traces/", "alpa-dejavu why rank0.json.gz rank1.json.gz --plan plan.json"),
    rests_on="Seconds are the traces'; what a cause would save is the step without it, with all else the same.",
)
@click.argument(
    "traces", nargs=-1, required=True, type=click.Path(path_type=pathlib.Path), metavar="TRACE..."
)
@option("--plan", "plan_path", type=PLAN_FILE, metavar="PLAN.json", help="Plan of the step: its prediction beside it.")
@option("--cluster", help="Cluster by whose rates links and products are judged.  [default: the plan's]")
def why(traces: Sequence[pathlib.Path], plan_path: pathlib.Path | None, cluster: str | None) -> None:
    """Says why a measured training step takes as long as it does.

    TRACE is a trace of PyTorch's profiler or jax's, a file for each rank, or a folder of them. Of the steps that all
    ranks have, the median one is told. A log of Megatron-LM or torchtitan (*.log) is compared with the plan alone.
    """
    from alpa_dejavu.clusters import named_cluster
    from alpa_dejavu.plans.plan_file import read_plan

    plan = None if plan_path is None else read_plan(plan_path)
    judged = named_cluster(cluster) if cluster is not None else None if plan is None else _cluster_of(plan)
    from alpa_dejavu.calibration.traces import is_log

    if len(traces) == 1 and is_log(traces[0]):
        _print_log(traces[0], plan)
        return
    with working("reading traces"):
        from alpa_dejavu.report.slow_step import why_slow

        steps, notes = traced_steps(traces)
        told = why_slow(steps, plan, judged)
    to = console()
    _print(told, plan, to)
    if plan is not None and len(told.ranks) < plan.num_devices:
        notes.append(f"traces are of {len(told.ranks)} of the plan's {units.counted(plan.num_devices, 'device')}")
    for note in notes:
        to.print(note)


def _print_log(path: pathlib.Path, plan: Plan | None) -> None:
    """Prints the steps of a log beside the plan's; a log has no causes."""
    from alpa_dejavu.calibration.traces import read_log
    from alpa_dejavu.layers.models import tokens_of_sample

    log, to = read_log(path), console()
    step_s, tokens = log.step_s, None if plan is None else tokens_of_sample(plan.model)
    if step_s is None and plan is not None and plan.batch and tokens and log.device_tokens_per_s:
        step_s = plan.batch * tokens / (log.device_tokens_per_s * plan.num_devices)
    if log.device_tokens_per_s is not None:
        to.fact("measured", f"{units.number(log.device_tokens_per_s)} tokens/s a device")
    if step_s is not None:
        to.fact("step", f"{units.seconds(step_s)}, the median of {units.counted(log.steps, 'step')} of {log.framework}")
    if plan is not None and step_s is not None:
        to.fact("predicted", f"{units.seconds(plan.step_s)}, {_share(plan.step_s / step_s - 1, signed=True)}")
    if log.memory_bytes is not None:
        predicted = "" if plan is None else f", {units.size(max(own.memory_bytes for own in plan.stages))} predicted"
        to.fact("memory", f"{units.size(log.memory_bytes)} at the peak{predicted}")
    to.print("a log doesn't say why: record a trace of two steps for that")


def _cluster_of(plan: Plan) -> Cluster | None:
    """The plan's cluster, unless the plan doesn't say which machine its hosts are."""
    from alpa_dejavu.planning.given.plan_estimate import cluster_of_plan

    try:
        return cluster_of_plan(plan)
    except ValueError:
        return None


def _print(told: SlowStep, plan: Plan | None, to: Pages) -> None:
    ranks = units.counted(len(told.ranks), "rank")
    to.fact("step", f"{units.seconds(told.step_s)} measured, the median of those that {ranks} recorded")
    if plan is not None:
        to.fact("predicted", f"{units.seconds(plan.step_s)}, {_share(plan.step_s / told.step_s - 1, signed=True)}")
    to.fact("told apart", "all of the step" if told.untold < 5e-4 else f"all but {_share(told.untold)} of the step")
    predicted = ("predicted",) if plan is not None else ()
    table = new_table(("of the average rank",), (*predicted, "measured", "share"))
    for part in told.parts:
        before = () if plan is None else ("" if part.predicted_s is None else units.seconds(part.predicted_s),)
        table.add_row(part.name, *before, units.seconds(part.measured_s), _share(part.measured_s / told.step_s))
    to.print(table)
    for n, cause in enumerate(told.causes, 1):
        to.fact(f"{n}. {cause.name}", f"costs {units.seconds(cause.saves_s)}, {_share(cause.saves_s / told.step_s)}")
        to.fact("", f"{cause.evidence}")
        to.fact("", f"usually {cause.usually}")
    if not told.causes:
        to.fact("causes", "none that the traces show would save 2 % of the step")


def _share(value: float, signed: bool = False) -> str:
    return f"{100 * value:+.1f} %" if signed else f"{100 * value:.1f} %"
