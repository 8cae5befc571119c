"""Plans whose stages offload quarters of what they keep: looked for about a plan that was found with whole shares."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.clusters.offload_choices import leanest, with_all_shares
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning.search._candidate import Candidate, Costs
from alpa_dejavu.planning.search.given_stages import used_configs
from alpa_dejavu.planning.task import PlanningTask, SpaceRules, StageSpace
from alpa_dejavu.problem import Cluster, SearchSpace

__all__ = ["LeanSpace", "with_shares"]


def with_shares(task: PlanningTask, found: Candidate) -> Candidate:
    """Returns the best plan about a candidate whose stages may offload any quarters of what they keep; the candidate
    itself where none of its stages offloads, or where no other plan is faster.

    Stages have the submeshes and configs of the candidate, but for the shares; its layers are cut anew.
    """
    space = used_configs(found)
    places = {config.offload.place for row in space.configs for config in row if config and config.offload.any}
    if not places:
        return found
    offered = with_all_shares(space, sorted(places))
    micro_batch = task.micro_batch(found.run.num_micro_batches)
    offered = task.space.restricted(offered, found.cluster, micro_batch)
    table = cost_table(found.model, found.cluster, offered, found.run, task.prices.models, task.margin)
    costs = task.adjusted(Costs(found.model, found.cluster, offered, found.run, table, found.costs.exact, True))
    other = costs.sliced(task.slicer, len(found.slicing.stages))
    # Bounds by these few configs alone say nothing of other plans.
    best = found if other is None or other.step_s >= found.step_s else other
    return dataclasses.replace(best, slicing=dataclasses.replace(best.slicing, lower_bound_s=0.0))


@final
@dataclasses.dataclass(frozen=True)
class LeanSpace(StageSpace):
    """A rule by which stages have only what keeps least on devices, and may offload any quarters of that: for what
    doesn't fit where whole kinds of tensors are offloaded.

    Attributes:
        rules: the rule for the submeshes and configs, and where stages may offload.
    """

    rules: SpaceRules

    def space(self, cluster: Cluster, micro_batch: int) -> SearchSpace:
        plain = dataclasses.replace(self.rules, offload="none").space(cluster, micro_batch)
        return self.restricted(leanest(plain, cluster, self.rules.offload), cluster, micro_batch)

    def restricted(self, space: SearchSpace, cluster: Cluster, micro_batch: int) -> SearchSpace:
        return self.rules.restricted(space, cluster, micro_batch)
