"""`alpa-dejavu explain`."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from alpa_dejavu._util import units
from alpa_dejavu.cli.commands import Command
from alpa_dejavu.cli.output import console
from alpa_dejavu.cli.parameters import PLAN_FILE, calibration_option
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.cli.tables import print_plan, print_said
from alpa_dejavu.cli.working import working
from alpa_dejavu.plans.plan_changes import stages_text
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.plans.table import fullest_parts
from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.sensitivity import alike, slope_texts, tells

if TYPE_CHECKING:
    from alpa_dejavu.report.explanation import Explanation
    from alpa_dejavu.simulation.sensitivity import Sensitivity

_MOST = 16
"""So many rows say what to speed up first."""


@click.command(
    cls=Command,
    examples=("alpa-dejavu explain plan.json", "alpa-dejavu explain plan.json --calibration here.json"),
    rests_on="The plan's step is simulated again, from the predicted seconds in its file, with one thing changed.",
)
@click.argument("plan_path", type=PLAN_FILE, metavar="PLAN.json")
@calibration_option
def explain(plan_path: pathlib.Path, calibration: str | None) -> None:
    """Says what bounds a plan's step, and what would help.

    Where `plan --json` kept its data beside the plan, it also plans with devices, bandwidths and layers twice as fast.
    """
    plan_in_file = read_plan(plan_path)
    with working(f"explaining {plan_path}"):
        explained, lacking = _explained(plan_in_file, plan_path, calibration)
    plan, to = explained.plan, console()
    fits = [("what would fit", explained.would_fit)] if explained.would_fit else []
    print_plan(plan, to, more=[*fits, ("bound by", explained.bound)])
    print_said(plan, to)
    for note in explained.notes:
        to.print(note)
    parts = new_table(("a device's step, on average",), ("time", "share"))
    for part, time in explained.parts.items():
        parts.add_row(part, units.seconds(time), f"{100 * time / plan.step_s:.1f} %")
    tables = [parts]
    settings = new_table(("one setting changed", "to"), ("iteration", "saves", "fullest memory"))
    for setting in explained.settings:
        step_s, memory = setting.plan.step_s, units.size(setting.memory_bytes)
        settings.add_row(
            setting.what, setting.value, units.seconds(step_s), f"{100 * (1 - step_s / plan.step_s):.1f} %", memory
        )
    tables += [settings] if explained.settings else []
    helps = new_table(("the same plan with",), ("iteration", "saves"))
    for option in explained.what_if:
        saved = 100 * (1 - option.step_s / plan.step_s)
        helps.add_row(option.change, units.seconds(option.step_s), f"{saved:.1f} %")
    for table in (*tables, helps, memory_table(plan), sensitivity_table(explained.sensitivities)):
        to.print()
        to.print(table)
    for line in lacking:
        to.print(line)


def memory_table(plan: Plan) -> Table:
    """Returns a table of what a device of a plan's fullest stage keeps, part by part, and what is left of it."""
    fullest = fullest_parts(plan)
    table = new_table((f"kept by a device of stage {fullest.stage}, the fullest",), ("memory", "of the device"))
    left = fullest.limit_bytes - sum(num_bytes for _, num_bytes in fullest.parts)
    for name, num_bytes in (*fullest.parts, ("left" if left >= 0 else "missing", abs(left))):
        share = f"{100 * num_bytes / fullest.limit_bytes:.1f} %" if fullest.limit_bytes else ""
        table.add_row(name, units.size(num_bytes), share)
    return table


def _explained(plan: Plan, path: pathlib.Path, calibration: str | None) -> tuple[Explanation, list[str]]:
    """With what is kept beside the plan, if it is there; else a sentence about that."""
    from alpa_dejavu.planning.changed.kept import kept_path, read_kept
    from alpa_dejavu.report.explanation import explain as explained

    unknown = "the best plans with devices or links twice as fast are left out"
    try:
        if kept_path(path).exists() or calibration is not None:
            return explained(plan, read_kept(path), calibration=calibration), []
        lacking = f"{unknown}: {kept_path(path)} is missing; `alpa-dejavu plan --json FILE` writes it beside the plan"
    except ValueError as error:
        if calibration is not None:
            raise
        lacking = f"{unknown}: {error}"
    return explained(plan), [lacking]


def sensitivity_table(sensitivities: Sequence[Sensitivity]) -> Table:
    """Returns a table of the figures that a plan's step depends on, the one that saves most first, in percent of it."""
    table = new_table(
        ("what to speed up first",),
        ("1 % faster saves", "of the step", "1 % slower costs", "step at twice the speed", "planned anew", "saves"),
        ("the new plan",),
        leave=("the new plan", "1 % slower costs", "of the step"),
    )
    rows = [row for row in alike(sensitivities) if tells(row[1])]
    for what, together in rows[:_MOST]:
        table.add_row(what, *_cells(together))
    if len(rows) > _MOST:
        table.add_row(f"and {len(rows) - _MOST} more, which save less")
    return table


def _cells(together: Sequence[Sensitivity]) -> tuple[str, ...]:
    best_s, best = "", ""
    if together[0].best_s is not None:
        best_s = units.span([own.best_s for own in together if own.best_s is not None], units.seconds)
        best = "this plan" if together[0].best is None else stages_text(together[0].best)
    return (
        units.span([sensitivity.saved_s / 100 for sensitivity in together], units.seconds),
        *slope_texts(together),
        best_s,
        f"{100 * together[0].gained_s / together[0].step_s:.1f} %",
        best,
    )
