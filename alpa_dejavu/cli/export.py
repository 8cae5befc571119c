"""`alpa-dejavu export`."""

from __future__ import annotations

import pathlib

import click

from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import PLAN_FILE
from alpa_dejavu.plans.plan_file import read_plan


@click.command()
@click.argument("plan_path", type=PLAN_FILE, metavar="PLAN.json")
@click.option("--to", required=True, metavar="NAME", help="The runtime, or the simulator, that the files are for.")
@click.option(
    "--output", type=click.Path(path_type=pathlib.Path, file_okay=False), required=True, metavar="DIR",
    help="The folder that the files are written to.",
)  # fmt: skip
@click.option("--model", help="Instead of the plan's: a known name, or the sizes of a transformer.")
@click.option("--force", is_flag=True, help="Replace files that are there.")
def export(plan_path: pathlib.Path, to: str, output: pathlib.Path, model: str | None, force: bool) -> None:
    """Writes a plan as the files that another runtime, or a simulator, reads."""
    from alpa_dejavu.exports import export as write
    from alpa_dejavu.exports import named_target
    from alpa_dejavu.layers.models import transformer_size

    target = named_target(to)
    written = write(read_plan(plan_path), target, output, force, None if model is None else transformer_size(model))
    out = console()
    for path in written:
        out.print(f"wrote {path}")
    out.print(f"for {target.release}; {target.tried}", soft_wrap=True)
