"""`alpa-dejavu doctor`."""

from __future__ import annotations

import click

from alpa_dejavu.cli.help import Command
from alpa_dejavu.cli.installation import checks, versions
from alpa_dejavu.cli.interrupts import interrupts_raised
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.table import new_table
from alpa_dejavu.cli.working import working


@click.command(
    cls=Command,
    examples=(
        "alpa-dejavu doctor",
        "alpa-dejavu doctor --compile",
    ),
    rests_on="Packages are really imported, in processes of their own, on the CPU; no GPU is tried.",
)
@click.option("--compile", "compiles", is_flag=True, help="Compile all that the first plan would wait for, too.")
def doctor(compiles: bool) -> None:
    """Says which packages are installed, which functions work on this machine, and what to do about the others."""
    to = console()
    installed = new_table(("package", "version"), (), ("what for",))
    for package in versions():
        installed.add_row(package.name, package.version or "not installed", package.purpose)
    to.print(installed)
    with working("trying what runs"), interrupts_raised():
        found = checks(compiles)
    table = new_table(("what", "runs"), (), ("finding",))
    for check in found:
        table.add_row(check.what, "yes" if check.runs else "no", check.finding)
    to.print(table)
    to_do = [check.remedy for check in found if not check.runs and check.remedy]
    for n, remedy in enumerate(dict.fromkeys(to_do), 1):
        to.print(f"{n}. {remedy}")
    if not to_do:
        to.print("nothing to do")
    if not found[0].runs:
        raise click.exceptions.Exit(1)
