"""The costs of all stages of a model by a planning task's models, layers' factors and past runs."""

from __future__ import annotations

from alpa_dejavu.costs.kept_prices import KeptPrices
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning.search._candidate import Costs
from alpa_dejavu.planning.task import PlanningTask
from alpa_dejavu.problem import Cluster, Model, Run, SearchSpace

__all__ = ["priced"]


def priced(
    task: PlanningTask,
    model: Model,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    exact: bool = True,
    partial: bool = False,
    kept: KeptPrices | None = None,
) -> Costs:
    """Returns the costs of all stages by a planning task's models, multiplied by the factors that it has for layers,
    and corrected by the past runs that it learns from. `kept` are prices from before; the other arguments are the
    attributes of `Costs`.
    """
    table = cost_table(model, cluster, space, run, task.prices.models, task.margin, kept)
    if task.factors is not None:
        from alpa_dejavu.costs.scaled_layers import with_layer_factors

        table = with_layer_factors(table, task.factors)
    costs = Costs(model, cluster, space, run, table, exact, partial)
    if task.learned:
        from alpa_dejavu.planning.search.uncertainty import with_past_runs

        costs = with_past_runs(costs, task.learned)
    return costs
