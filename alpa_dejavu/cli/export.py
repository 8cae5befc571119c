"""`alpa-dejavu export`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import click

from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.models import sizes_of_model
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import PLAN_FILE
from alpa_dejavu.plans.plan_file import read_plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept


def _divisions() -> list[tuple[str, str]]:
    """Returns what each runtime's files can say beside data and pipeline parallelism."""
    from alpa_dejavu.planning.search.runtimes import RUNTIMES

    return [
        (name, ", ".join([*["tensor_parallel"][: limits.tensor_parallel], *limits.degrees]) +
         f"; remat {'|'.join(limits.remat)}")
        for name, limits in RUNTIMES.items()
    ]  # fmt: skip


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu export plan.json --to alpa --output folder",
        "alpa-dejavu export plan.json --to chakra --output traces --force",
    ),
    rows=("What the files can express beside data and pipeline parallelism", _divisions),
    rests_on="Files for simulators have the seconds that the plan predicts; the others have none.",
)
@click.argument("plan_path", type=PLAN_FILE, metavar="PLAN.json")
@option("--to", required=True, metavar="NAME", help="Runtime or simulator that reads the files.")
@option(
    "--output", type=click.Path(path_type=pathlib.Path, file_okay=False), required=True, metavar="DIR",
    help="Folder to write the files to.",
)  # fmt: skip
@option("--model", help="Model instead of the plan's: a name, config.json, or sizes.")
@option("--sequence", type=click.IntRange(min=1), help="Tokens of a sample of --model.")
@option("--force", is_flag=True, help="Replace files that exist.")
def export(
    plan_path: pathlib.Path, to: str, output: pathlib.Path, model: str | None, sequence: int | None, force: bool
) -> None:
    """Writes a plan as another runtime's or a simulator's files."""
    from alpa_dejavu.exports import export as write
    from alpa_dejavu.exports import named_target

    target, sizes = named_target(to), None if model is None else sizes_of_model(model, sequence)
    written = write(read_plan(plan_path), target, output, force, sizes, _kept(plan_path))
    out = console()
    out.wrote(written)
    out.print(f"for {target.release}; {target.tried}")


def _kept(plan_path: pathlib.Path) -> Kept | None:
    """Returns what is kept beside a plan; None where that can't be used, as the writers do without it."""
    from alpa_dejavu.planning.changed.kept import kept_path, read_kept

    if not kept_path(plan_path).exists():
        return None
    try:
        return read_kept(plan_path)
    except ValueError:
        return None
