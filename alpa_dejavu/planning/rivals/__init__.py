"""A model, a cluster and a batch come in; the plan that AMP, HetPipe, Megatron-LM or Alpa would make goes out.

Strategies, others' to compare with and our own, all answer one question, and are priced by one truth.

    from alpa_dejavu.planning.rivals import strategy
    strategy("amp").plan(model, cluster, batch=32).step_s

The truth is this package's simulation on the cluster as it is, with the latency and communication models that are
given; beside it stands what each strategy itself reckons with. `as_planned` makes a plan like any other of what a
strategy answers; `plan_model(..., strategy="amp")` and `DejavuStageOption(strategy="amp")` do all of that.
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
    """Returns the strategy of a name ("alpa", "amp", "dejavu", "hetpipe", "megatron", "pipelines"), or the given
    strategy itself.

    >>> strategy("amp")
    Amp(variant='paper', trials=1, orders=24)
    """
    strategies: dict[str, type[Strategy]] = {
        "alpa": AlpaDefault, "amp": Amp, "dejavu": Dejavu, "hetpipe": HetPipe, "megatron": Megatron,
        "pipelines": DataParallelPipelines,
    }  # fmt: skip
    return resolve("strategy", choice, strategies, Strategy)  # type: ignore[type-abstract]
