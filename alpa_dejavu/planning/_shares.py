"""Plans whose stages offload quarters of what they keep: looked for about a plan that was found with whole shares."""

from __future__ import annotations

from alpa_dejavu.clusters.offload_choices import with_all_shares
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning._candidate import Candidate, Costs
from alpa_dejavu.planning._given import used_configs
from alpa_dejavu.planning.task import PlanningTask

__all__ = ["with_shares"]


def with_shares(task: PlanningTask, found: Candidate) -> Candidate:
    """Returns the best plan about a candidate whose stages may offload any quarters of what they keep; the candidate
    itself where none of its stages offloads, or where no other plan is faster.

    Stages have the submeshes and configs of the candidate, but for the shares; its layers are cut anew.
    """
    space = used_configs(found)
    places = {config.offload.place for row in space.configs for config in row if config and config.offload.any}
    best = found
    for place in sorted(places):
        offered = with_all_shares(space, place)
        table = cost_table(found.model, found.cluster, offered, found.run, task.prices.models, task.margin)
        costs = task.adjusted(Costs(found.model, found.cluster, offered, found.run, table, found.costs.exact, True))
        other = costs.sliced(task.slicer, len(found.slicing.stages))
        if other is not None and other.step_s < best.step_s:
            best = other
    return best
