"""The page itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alpa_dejavu.cost_table import CostTable
from alpa_dejavu.problem import Plan, SearchSpace
from alpa_dejavu.report._content import Layer
from alpa_dejavu.simulate import Timeline

__all__ = ["html_report"]


def html_report(
    plan: Plan,
    timeline: Timeline,
    *,
    title: str = "",
    table: CostTable | None = None,
    space: SearchSpace | None = None,
    layers: Sequence[Layer] = (),
    runners_up: Sequence[tuple[str, float, str]] = (),
    facts: Mapping[str, str] | None = None,
    provenance: Mapping[str, str] | None = None,
    measured: Timeline | None = None,
) -> str:
    """One self-contained HTML page about a plan; see the package."""
    return title
