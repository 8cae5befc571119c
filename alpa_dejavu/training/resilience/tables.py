"""The figures as tables for people: curves, critical and harmless parts, and the stages of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from alpa_dejavu.problem import Plan
from alpa_dejavu.training.resilience._result import Point, Resilience
from alpa_dejavu.training.resilience.critical import Chosen

__all__ = ["Rows", "chosen_rows", "curve_rows", "stage_rows"]

Rows: TypeAlias = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The headings, and the rows."""


def curve_rows(found: Resilience) -> Rows:
    """Returns a row for each point: fault, parts, share, mean with its interval, 5th percentile, outputs with NaN."""
    heads = ("fault", "of", "share", f"of {found.units}", "mean", "90 % interval", "5th percentile", "not finite")
    return heads, [_point(found, point) for point in found.points]


def _point(found: Resilience, point: Point) -> tuple[str, ...]:
    low, high = point.interval
    return (
        point.fault, point.group or f"all {found.kind}", f"{point.share:.1%}", str(point.count), f"{point.mean:.4f}",
        f"{low:.4f} to {high:.4f}", f"{point.low:.4f}", f"{point.not_finite.mean():.1%}",
    )  # fmt: skip


def chosen_rows(chosen: Mapping[str, Chosen]) -> Rows:
    """Returns a row for each choice of parts, by what it is called: its parts, and loss and accuracy without them."""
    heads = ("parts", "removed", "loss", "loss without them", "accuracy", "accuracy without them")
    return heads, [
        (name, ", ".join(one.names), f"{one.loss_before:.4f}", f"{one.loss:.4f}", f"{one.accuracy_before:.4f}",
         f"{one.accuracy:.4f}")
        for name, one in chosen.items()
    ]  # fmt: skip


def stage_rows(plan: Plan, blocks: Mapping[str, Sequence[str]], without: Mapping[str, Point]) -> Rows:
    """Returns a row for each stage of a plan: its hosts, the blocks it holds, and what is judged without its answer.

    Args:
        plan: the plan.
        blocks: for each stage the model's blocks, as `spares.blocks_of_stages` returns.
        without: for each stage that has blocks the point at which it is removed.
    """
    heads = ("stage", "hosts", "blocks", "judged without its answer")
    return heads, [
        (name, ", ".join(stage.hosts), ", ".join(held) or "none",
         f"{without[name].mean:.4f}" if name in without else "nothing changes")
        for (name, held), stage in zip(blocks.items(), plan.stages, strict=True)
    ]  # fmt: skip
