"""A plan as a table for people."""

from __future__ import annotations

from alpa_dejavu._util import units
from alpa_dejavu.plans.stage_rows import BRIEF, folded_cells, stage_rows
from alpa_dejavu.problem import Plan


def plan_table(plan: Plan) -> str:
    """Returns a plan as a table in plain text: a row for each run of equal stages, then the predicted seconds of a
    step.
    """
    rows = [[column.name for column in BRIEF], *folded_cells(BRIEF, stage_rows(plan))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append(
        f"{plan.predicted} ({plan.num_micro_batches} micro-batches, {plan.schedule}, "
        f"{plan.cluster}); planned in {planning_text(plan)}"
    )
    if plan.correction is not None:
        runs, factor = plan.correction.runs, plan.correction.factor
        lines.append(f"corrected by {runs} run{'s' if runs > 1 else ''}: {factor:.3f} times as predicted")
    return "\n".join(lines)


def planning_text(plan: Plan) -> str:
    """Returns the time that planning took, as text: all of it, and that of each step of it in brackets."""
    steps = ", ".join(f"{step} {units.seconds(seconds)}" for step, seconds in plan.planning_s.items())
    return f"{units.seconds(plan.total_planning_s)} ({steps})"
