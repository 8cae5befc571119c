"""Compares clusters for one model: what a step takes and costs on each, by each way to keep less in memory.

    from alpa_dejavu.planning.given.comparison import compare
    compare("gpt-1.3b", ["2 x p3.16xlarge", "p4d.24xlarge"], batch=256).changes("seconds")

In: a model, a batch, and clusters. Out: a `Comparison`: a `Cell` for each cluster and `Saving`, which is the plan that
`plan_model` finds there, or why there is none; the order of the clusters, with how sure it is; and where it changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from alpa_dejavu._util.lazy import loaded_when_used

if TYPE_CHECKING:
    from alpa_dejavu.planning.given.comparison._cells import SAVINGS, Cell, Figures, Saving
    from alpa_dejavu.planning.given.comparison._compare import (
        Comparison,
        compare,
        comparison_format,
        comparison_text,
    )
    from alpa_dejavu.planning.given.comparison._orders import MEASURES, Change, Order

__all__ = [
    "MEASURES", "SAVINGS", "Cell", "Change", "Comparison", "Figures", "Order", "Saving", "compare", "comparison_format",
    "comparison_text",
]  # fmt: skip

_HOME = {
    **dict.fromkeys(("SAVINGS", "Cell", "Figures", "Saving"), "_cells"),
    **dict.fromkeys(("Comparison", "compare", "comparison_format", "comparison_text"), "_compare"),
    **dict.fromkeys(("MEASURES", "Change", "Order"), "_orders"),
}

__getattr__, __dir__ = loaded_when_used(__name__, _HOME)
