"""`alpa-dejavu import`."""

from __future__ import annotations

import pathlib
from typing import Any

import click

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import PREDICTIONS, Command
from alpa_dejavu.cli.diff import print_difference
from alpa_dejavu.cli.estimate import lacking
from alpa_dejavu.cli.files import OUTPUT, check_outputs, takes_stdout, write_output, write_outputs
from alpa_dejavu.cli.models import sizes_of_model
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import PLAN_FILE, hosts_option, pricing_options
from alpa_dejavu.cli.tables import print_planned
from alpa_dejavu.cli.working import working


@click.command(
    "import",
    cls=Command,
    examples=(
        "alpa-dejavu import pretrain.sh --from megatron --cluster p4d.24xlarge",
        "alpa-dejavu import pretrain.sh --from megatron --cluster p4d.24xlarge --hosts 4 --faster plan.json",
        "alpa-dejavu import config_registry.py --from torchtitan --config llama3_8b --cluster p4d.24xlarge",
    ),
    rests_on=PREDICTIONS,
)
@click.argument("path", type=PLAN_FILE, metavar="FILE")
@click.option(
    "--from", "source", required=True,
    type=click.Choice(("megatron", "torchtitan", "maxtext", "deepspeed", "galvatron")),
    help="Whose it is: Megatron's script, torchtitan's TOML or Python, MaxText's YAML or script, or another's JSON.",
)  # fmt: skip
@click.option("--config", default="", metavar="NAME", help="Which function in torchtitan's Python, if several.")
@click.option("--cluster", required=True, help="A known machine (`p4d.24xlarge`), or a JSON file.")
@hosts_option
@click.option("--model", help="A known name, a config.json, or the sizes; the default is what the file says.")
@click.option("--sequence", type=click.IntRange(min=1), help="Tokens of a sample, where the model's file allows more.")
@click.option("--faster", "faster_path", type=OUTPUT, metavar="FILE", help="Plan for the same runtime, and write that.")
@click.option("--json", "json_path", type=OUTPUT, metavar="FILE", help="Write the plan of the configuration.")
@click.option("--html", "html_path", type=OUTPUT, metavar="FILE", help="Write a report on it.")
@pricing_options
@collector_paused()
def import_(
    path: pathlib.Path,
    source: str,
    config: str,
    cluster: str,
    hosts: int,
    model: str | None,
    sequence: int | None,
    faster_path: pathlib.Path | None,
    json_path: pathlib.Path | None,
    html_path: pathlib.Path | None,
    **pricing: Any,
) -> None:
    """Reads the plan in another runtime's configuration, and predicts its step; nothing in it is run.

    With `--faster` the best plan that the same runtime can run is looked for, and said in what it differs.
    """
    paths = (json_path, html_path, faster_path)
    check_outputs(*paths)
    to = console(takes_stdout(*paths))
    sizes = None if model is None else sizes_of_model(model, sequence)
    with working(f"reading {path}"):
        from alpa_dejavu.exports import import_plan

        imported = import_plan(path, source, cluster, hosts, sizes, config, **pricing)
    plan = imported.result.plan
    print_planned(imported.result, to, "estimated")
    for line in (*lacking(plan), *(f"ignored: {name}" for name in imported.ignored)):
        to.print(line)
    written = write_outputs(imported.result, json_path, None, html_path, None)
    if faster_path is not None:
        with working("planning for what is faster"):
            from alpa_dejavu.planning import plan_model
            from alpa_dejavu.plans.plan_file import plan_text

            pricing["attention"] = pricing["attention"] or ""
            best = plan_model(plan.model, cluster, hosts, plan.batch or 1, runs_on=source, **pricing).plan
        print_difference(plan, best, (f"yours, {path}", f"faster, {faster_path}"), to)
        written += write_output(faster_path, plan_text(best))
    to.wrote(written)
