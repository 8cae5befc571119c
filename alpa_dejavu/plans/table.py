"""A plan as a table for people."""

from __future__ import annotations

from alpa_dejavu.problem import Plan, StagePlan

_MIB = 2.0**20
_HEADS = ("stage", "layers", "submesh", "logical", "hosts")
_FIGURES = ("compute ms", "collective ms", "boundary ms", "per step ms", "MiB")


def plan_table(plan: Plan) -> str:
    """The stages, a row each, and what a step is predicted to take."""
    rows = [(*_HEADS, *_FIGURES), *(_row(n, stage) for n, stage in enumerate(plan.stages))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append(
        f"predicted {plan.step_s:.4g} s per step ({plan.num_micro_batches} micro-batches, {plan.schedule}, "
        f"{plan.cluster}); planned in {plan.total_planning_s:.3f} s ("
        + ", ".join(f"{step} {seconds:.3f} s" for step, seconds in plan.planning_s.items())
        + ")"
    )
    if plan.correction is not None:
        runs, factor = plan.correction.runs, plan.correction.factor
        lines.append(f"corrected by {runs} run{'s' if runs > 1 else ''}: {factor:.3f} times as predicted")
    return "\n".join(lines)


def _row(n: int, stage: StagePlan) -> tuple[str, ...]:
    first, last = stage.layers
    times = (stage.compute_s, stage.collective_s, stage.boundary_s, stage.per_step_s)
    return (
        str(n),
        str(first) if first == last else f"{first}-{last}",
        f"{stage.submesh.num_hosts}x{stage.submesh.devices_per_host}",
        "x".join(map(str, stage.logical_mesh)),
        " ".join(stage.hosts),
        *(f"{seconds * 1e3:.3f}" for seconds in times),
        f"{stage.memory_bytes / _MIB:.1f} of {stage.memory_limit_bytes / _MIB:.0f}",
    )
