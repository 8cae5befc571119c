"""`alpa-dejavu import`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import click

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.cli.commands import DOES_NOT_FIT, PREDICTIONS, Command, option
from alpa_dejavu.cli.diff import print_difference
from alpa_dejavu.cli.files import OUTPUT, PAGE, check_outputs, kept_beside, takes_stdout, write_outputs, write_pair
from alpa_dejavu.cli.models import sizes_of_model
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import CLUSTER, FILES, MODEL, PLAN_FILE, LateChoice, hosts_option, pricing_options
from alpa_dejavu.cli.tables import print_planned
from alpa_dejavu.cli.working import working
from alpa_dejavu.plans.table import lacking


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
@option(
    "--from", "source", type=LateChoice("exports:SOURCES"), required=True,
    help="Framework of the file: a script, TOML, Python, YAML or JSON.",
)  # fmt: skip
@option("--config", default="", metavar="NAME", help="Function to take, where torchtitan's Python has several.")
@option("--cluster", group=CLUSTER, required=True, help="Machine (`alpa-dejavu machines`), or a file.")
@hosts_option
@option("--model", group=MODEL, help="Name, config.json, or sizes.  [default: the file's]")
@option("--sequence", group=MODEL, rare=True, type=click.IntRange(min=1),
        help="Tokens of a sample, where the model's file allows more.")  # fmt: skip
@option("--faster", "faster_path", group=FILES, type=OUTPUT, metavar="FILE",
        help="Search the same runtime's best plan, and write it.")  # fmt: skip
@option("--json", "json_path", group=FILES, type=OUTPUT, metavar="FILE", help="Write the imported plan.")
@option("--html", "html_path", group=FILES, type=PAGE, metavar="FILE", help="Write a report on the imported plan.")
@option("--optimizer", group=MODEL, rare=True, type=LateChoice("layers.models:OPTIMIZERS"),
        help="Optimizer, where the file names none.")  # fmt: skip
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
    optimizer: str | None,
    **pricing: Any,
) -> None:
    """Reads another framework's configuration and predicts its step; nothing in the file is run.

    With `--faster` it also says in what the best plan of the same runtime differs. The exit code is 3 where the plan in
    the file doesn't fit into memory.
    """
    paths = (json_path, html_path, faster_path)
    check_outputs(*paths, *kept_beside(json_path), *kept_beside(faster_path))
    to = console(takes_stdout(*paths))
    sizes = None if model is None else sizes_of_model(model, sequence)
    with working(f"reading {path}"):
        from alpa_dejavu.exports import import_plan
        from alpa_dejavu.layers.models import transformer_size
        from alpa_dejavu.planning.changed.kept import Kept
        from alpa_dejavu.planning.given.fitting import what_fits

        imported = import_plan(path, source, cluster, hosts, sizes, config, optimizer, **pricing)
        plan = imported.result.plan
        fits = what_fits(plan, imported.estimator) if lacking(plan) else ""
    read = transformer_size(plan.model)
    if sequence is not None and read is not None and sequence != read.sequence:
        why = f"sequence is {sequence}, but {path} says {read.sequence}"
        raise ValueError(f"{why}; leave --sequence out, or change the file")
    ignored = [f"ignored: {'; '.join(imported.ignored)}"] if imported.ignored else []
    written, unkept = write_pair(plan, Kept.of(imported.result), json_path) if json_path else ([], "")
    noted = dataclasses.replace(imported.result, plan=dataclasses.replace(plan, notes=(*plan.notes, *ignored)))
    written += write_outputs(noted, None, None, html_path, None)
    print_planned(imported.result, to, "estimated", fits)
    for line in filter(None, (*ignored, unkept)):
        to.print(line)
    if faster_path is not None:
        with working("planning for what is faster"):
            from alpa_dejavu.planning import plan_model

            by = plan.priced_by
            assert by is not None, "it was priced"
            pricing |= {"runtime": by.runtime, "attention": by.attention}  # as the file has them, with its overlap
            best = plan_model(plan.model, cluster, hosts, plan.batch or 1, runs_on=by.runs_on, **pricing)
        more, line = write_pair(best.plan, Kept.of(best), faster_path)
        written += more
        print_difference(plan, best.plan, (f"yours, {path}", f"faster, {faster_path}"), to)
        for note in (*best.plan.notes, *([line] if line else [])):
            to.print(f"faster: {note}")
    to.wrote(written)
    if lacking(plan):
        click.get_current_context().exit(DOES_NOT_FIT)
