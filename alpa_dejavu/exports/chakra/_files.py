"""The files that Chakra's execution traces of a plan are: one for each rank, and one of the groups."""

from __future__ import annotations

import json

from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.exports.chakra._ranks import Ranks
from alpa_dejavu.exports.chakra._traces import rank_traces
from alpa_dejavu.exports.stage_work import stage_works
from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.plan_times import plan_times

__all__ = ["chakra_files"]


def chakra_files(plan: Plan, costs: StageCostModel) -> dict[str, str | bytes]:
    """Returns Chakra's execution traces of a plan's step, by the names of their files.

    Args:
        plan: the plan.
        costs: the model of costs that priced it, for its model and its cluster.

    Raises:
        ValueError: the costs are of a model with another number of layers.
    """
    times, ranks = plan_times(plan), Ranks.of(plan)
    works = stage_works(plan, times, costs)
    traces = rank_traces(plan, times, works, costs.interstage.bytes, ranks)
    files: dict[str, str | bytes] = {f"step.{rank}.et": trace for rank, trace in enumerate(traces)}
    return {**files, "groups.json": json.dumps(ranks.numbered_groups, indent=1) + "\n"}
