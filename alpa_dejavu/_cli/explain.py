"""`alpa-dejavu explain`."""

from __future__ import annotations

import pathlib

import click

from alpa_dejavu._cli.output import console, seconds
from alpa_dejavu._cli.parameters import PLAN_FILE
from alpa_dejavu._cli.tables import new_table, print_plan, print_said
from alpa_dejavu.plan_file import read_plan


@click.command()
@click.argument("plan_path", type=PLAN_FILE, metavar="PLAN.json")
def explain(plan_path: pathlib.Path) -> None:
    """Says what bounds a plan, and what would help."""
    plan = read_plan(plan_path)
    from alpa_dejavu.explanation import explain as explained

    found = explained(plan)
    to = console()
    print_plan(plan, to)
    to.print(f"iteration time {seconds(plan.step_s)}: {found.bound}")
    print_said(plan, to)
    for note in found.notes:
        to.print(note)
    parts = new_table(("of the average device",), ("time", "share"))
    for part, time in found.parts.items():
        parts.add_row(part, seconds(time), f"{100 * time / plan.step_s:.1f} %")
    to.print(parts)
    helps = new_table(("what would help",), ("iteration", "saves"))
    for option in found.what_if:
        saved = 100 * (1 - option.step_s / plan.step_s)
        helps.add_row(option.change, seconds(option.step_s), f"{saved:.1f} %")
    to.print(helps)
