"""A model, a cluster and a batch come in; the plan that AMP, HetPipe, Megatron-LM or Alpa would make goes out.

All strategies answer one question, and are priced by one truth: this package's simulation on the cluster as it is.
`as_planned` makes a plan like any other of what a strategy answers; `plan_model(..., strategy="amp")` does all of that.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.planning.rivals._amp import Amp
from alpa_dejavu.planning.rivals._base import Strategy, StrategyPlan, UnlikePipelinesError
from alpa_dejavu.planning.rivals._by_strategy import ByStrategy, as_planned
from alpa_dejavu.planning.rivals._hetpipe import HetPipe
from alpa_dejavu.planning.rivals._megatron import Megatron
from alpa_dejavu.planning.rivals._pipelines import DataParallelPipelines
from alpa_dejavu.planning.rivals._searched import AlpaDefault, Dejavu
from alpa_dejavu.planning.rivals._task import StrategyTask

__all__ = [
    "AlpaDefault", "Amp", "ByStrategy", "DataParallelPipelines", "Dejavu", "HetPipe", "Megatron", "Strategy",
    "StrategyPlan", "StrategyTask", "UnlikePipelinesError", "as_planned", "strategy",
]  # fmt: skip


def strategy(choice: str | Strategy) -> Strategy:
    """Returns the strategy of a name, or the given strategy itself.

    >>> strategy("amp")
    Amp(variant='paper', trials=1, orders=24)
    """
    strategies: dict[str, type[Strategy]] = {
        "alpa": AlpaDefault, "amp": Amp, "dejavu": Dejavu, "hetpipe": HetPipe, "megatron": Megatron,
        "pipelines": DataParallelPipelines,
    }  # fmt: skip
    return resolve("strategy", choice, strategies, Strategy)  # type: ignore[type-abstract]
