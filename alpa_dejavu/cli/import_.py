"""`alpa-dejavu import`."""

from __future__ import annotations

import pathlib
from typing import Literal

import click

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.diff import print_difference
from alpa_dejavu.cli.estimate import lacking
from alpa_dejavu.cli.files import OUTPUT, check_outputs, takes_stdout, write_output, write_outputs
from alpa_dejavu.cli.help import PREDICTIONS, Command
from alpa_dejavu.cli.model_argument import sizes_of_model
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import (
    PLAN_FILE,
    attention_option,
    cache_option,
    calibration_option,
    overlap_option,
    runtime_option,
)
from alpa_dejavu.cli.tables import print_planned
from alpa_dejavu.cli.working import working


@click.command(
    "import",
    cls=Command,
    examples=(
        "alpa-dejavu import pretrain.sh --from megatron --cluster p4d.24xlarge",
        "alpa-dejavu import pretrain.sh --from megatron --cluster p4d.24xlarge --hosts 4 --faster plan.json",
    ),
    rests_on=PREDICTIONS,
)
@click.argument("path", type=PLAN_FILE, metavar="FILE")
@click.option(
    "--from", "source", type=click.Choice(("megatron", "torchtitan", "deepspeed", "galvatron")), required=True,
    help="Whose configuration it is: Megatron's command line in a script, torchtitan's TOML, or another's JSON.",
)  # fmt: skip
@click.option("--cluster", required=True, help="A known machine (`p4d.24xlarge`), or a JSON file.")
@click.option("--hosts", type=click.IntRange(min=1), default=1, show_default=True, help="How many machines.")
@click.option("--model", help="A known name, a config.json, or the sizes; the default is what the file says.")
@click.option("--sequence", type=click.IntRange(min=1), help="Tokens of a sample, where the model's file allows more.")
@click.option("--faster", "faster_path", type=OUTPUT, metavar="FILE", help="Plan for the same runtime, and write that.")
@click.option("--json", "json_path", type=OUTPUT, metavar="FILE", help="Write the plan of the configuration.")
@click.option("--html", "html_path", type=OUTPUT, metavar="FILE", help="Write a report on it.")
@calibration_option
@runtime_option
@overlap_option
@attention_option
@cache_option
@collector_paused()
def import_(
    path: pathlib.Path,
    source: str,
    cluster: str,
    hosts: int,
    model: str | None,
    sequence: int | None,
    faster_path: pathlib.Path | None,
    json_path: pathlib.Path | None,
    html_path: pathlib.Path | None,
    calibration: str | None,
    runtime: str | None,
    overlap: str | None,
    attention: str | None,
    no_cache: bool,
) -> None:
    """Reads the plan in another runtime's configuration, and predicts its step; nothing in it is run.

    With `--faster` the best plan that the same runtime can run is looked for, and said in what it differs.
    """
    paths = (json_path, html_path, faster_path)
    check_outputs(*paths)
    to = console(takes_stdout(*paths))
    sizes = None if model is None else sizes_of_model(model, sequence)
    cache: Literal[False] | None = False if no_cache else None
    with working(f"reading {path}"):
        from alpa_dejavu.exports import import_plan

        imported = import_plan(
            path, source, cluster, hosts, sizes, calibration=calibration, runtime=runtime, overlap=overlap,
            attention=attention, cache=cache,
        )  # fmt: skip
    plan = imported.result.plan
    print_planned(imported.result, to, "estimated")
    for line in (*lacking(plan), *(f"ignored: {one}" for one in imported.ignored)):
        to.print(line)
    written = write_outputs(imported.result, json_path, None, html_path, None)
    if faster_path is not None:
        with working("planning for what is faster"):
            from alpa_dejavu.planning import plan_model
            from alpa_dejavu.plans.plan_file import plan_text

            best = plan_model(
                plan.model, cluster, hosts, plan.batch or 1, runs_on=source, calibration=calibration, runtime=runtime,
                overlap=overlap, attention=attention or "", cache=cache,
            ).plan  # fmt: skip
        print_difference(plan, best, (f"yours, {path}", f"faster, {faster_path}"), to)
        written += write_output(faster_path, plan_text(best))
    for each in written:
        to.print(f"wrote {each}")
