"""`alpa-dejavu spend`."""

from __future__ import annotations

import functools
import json
import pathlib
from typing import TYPE_CHECKING, Literal

import click

from alpa_dejavu._util import units
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.files import OUTPUT, check_outputs, takes_stdout, write_output
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import (
    CLUSTER,
    DEGREES,
    FILES,
    MODEL,
    cache_option,
    calibration_option,
    hosts_option,
    layers_option,
)
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.working import working

if TYPE_CHECKING:
    from alpa_dejavu.playground.spend import Spending, SpendRow, Way


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu spend --model gpt-125m --cluster p3.16xlarge --seconds 3600",
        "alpa-dejavu spend --model my_model:made --cluster cluster.json --batch 256 --seconds 600 --json spend.json",
    ),
    rests_on="Seconds of a step are predicted. Steps to the same loss are measured in short trainings on this machine.",
)
@option("--model", group=MODEL, required=True, help="Name (`alpa-dejavu models`), or module:function of your own.")
@option("--cluster", group=CLUSTER, required=True, help="Machine (`alpa-dejavu machines`), or a file.")
@hosts_option
@option("--batch", group=DEGREES, type=click.IntRange(min=1), default=64, show_default=True, help="Samples of a step.")
@option("--seconds", type=float, required=True, help="Seconds for which the devices are available.")
@layers_option
@option("--trial", type=click.Choice(("auto", "stand-in")), default="auto", show_default=True,
        help="Network that the trial trains: your model if it is small and brings data, or a stand-in.")  # fmt: skip
@option("--seeds", type=click.IntRange(min=2), default=5, show_default=True,
        help="Trainings of each alternative, by as many seeds.")  # fmt: skip
@option("--steps", type=click.IntRange(min=80), default=150, show_default=True, help="Steps of each training.")
@calibration_option
@cache_option
@option("--json", "json_path", group=FILES, type=OUTPUT, metavar="FILE", help="Write all figures.")
@collector_paused()
def spend(
    model: str, cluster: str, hosts: int, batch: int, seconds: float, layers: int | None, trial: str, seeds: int,
    steps: int, calibration: str | None, cache: Literal[False] | None, json_path: pathlib.Path | None,
) -> None:  # fmt: skip
    """Says what to spend devices on: batch, more starts, or OptEx. A trial trains a small network here."""
    check_outputs(json_path)
    with working(f"comparing ways to spend {cluster} on {model}") as tell:
        from alpa_dejavu.clusters import named_cluster
        from alpa_dejavu.planning import plan_model
        from alpa_dejavu.playground.spend import Trial
        from alpa_dejavu.playground.spend import spend as compare

        def say(doing: str, way: Way) -> None:
            tell(f"{'planning' if doing == 'plan' else 'trying'}: {way}")

        plan = functools.partial(plan_model, layers=layers, calibration=calibration, cache=cache)
        spending = compare(
            model, named_cluster(cluster, hosts), batch, seconds, plan=plan, own=trial == "auto",
            trial=Trial(seeds, steps), on_way=say,
        )  # fmt: skip
    written = [] if json_path is None else write_output(json_path, json.dumps(spending.data(), indent=1) + "\n")
    to = console(takes_stdout(json_path))
    to.print(_table(spending))
    to.print()
    for name, text in _facts(spending):
        to.fact(name, text)
    to.wrote(written)


def _table(spending: Spending) -> Table:
    figures = "each", "a step", "steps", "steps to the loss", "time to the loss"
    table = new_table(("spend them on",), figures, leave=("steps", "each", "a step"))
    for row in spending.rows:
        if not row.why_not:
            table.add_row(*_cells(row))
    return table


def _cells(row: SpendRow) -> tuple[str, ...]:
    step = units.seconds(row.cost.step_s)
    if row.cost.race_step_s is not None:
        step = f"{units.seconds(row.cost.race_step_s)}, then {step}"
    gain, told = row.gain.steps, row.to_loss_s
    steps = f"{gain.mean:.2f} ({gain.low:.2f} to {gain.high:.2f})"
    time = f"{units.seconds(told.mean)} ({units.seconds(told.low)} to {units.seconds(told.high)})"
    if row.way.kind == "plain":
        steps, time = "1", units.seconds(told.mean)
    return str(row.way), units.counted(row.cost.devices, "device"), step, f"{row.steps:.0f}", steps, time


def _facts(spending: Spending) -> list[tuple[str, str]]:
    """Facts on the answer, on what is predicted and measured, and on what that leaves out."""
    left_out = [("left out", f"{row.way}: {row.why_not}") for row in spending.rows if row.why_not]
    unreached = [
        (
            "not reached",
            f"{row.way}: {row.gain.unreached} of {spending.seeds} trainings miss the loss; each counts twice",
        )
        for row in spending.rows if row.gain.unreached
    ]  # fmt: skip
    which = f"{spending.trained} ({spending.num_parameters:,} parameters)"
    whose = f"a stand-in, {which}, since {spending.stands_in}" if spending.stands_in else f"the model itself, {which}"
    return [
        ("best", _answer(spending)),
        *left_out,
        *unreached,
        (
            "predicted",
            f"seconds of a step, by the planner, for {spending.model} on {spending.cluster}, batch {spending.batch}; "
            f"steps are those in {units.seconds(spending.seconds)}",
        ),
        (
            "measured",
            "steps to the loss over plain training's, with 90 % intervals, on this machine in "
            f"{units.roughly(spending.trial_s)}: {whose}; {spending.seeds} trainings of {spending.trial_steps} steps "
            "by Adam",
        ),
        ("not counted", "moving the best start to all devices; a long training of a large model may gain otherwise"),
    ]  # fmt: skip


def _answer(spending: Spending) -> str:
    best, seconds = spending.best, units.seconds(spending.seconds)
    if best.way.kind == "plain":
        return "as it is: no other way is sooner at the same loss"
    answer = f"{best.way}: {units.seconds(best.to_loss_s.mean)} to the loss that plain training has after {seconds}"
    return answer if spending.is_sure else f"{answer}, but that isn't sure: its interval reaches beyond plain training"
