"""What a strategy is asked, for one cluster and for what is left of it: a plan, and how sure that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import final

from alpa_dejavu._kinds import kinds_of
from alpa_dejavu.contingency import Fallback, hosts_left, with_planned
from alpa_dejavu.cost_models import CostModels
from alpa_dejavu.estimate import choices_of
from alpa_dejavu.planned import Planned
from alpa_dejavu.problem import Cluster, Model, NoPlanError, Slicing
from alpa_dejavu.search import Candidate
from alpa_dejavu.strategies._as_plan import as_planned
from alpa_dejavu.strategies._base import Strategy
from alpa_dejavu.uncertainty import confidence

__all__ = ["Asked"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Asked:
    """A strategy with what stays the same, whichever hosts there are.

    Attributes:
        strategy: who plans.
        batch: samples of a step.
        micro_batches: so many there must be of each pipeline; None: the strategy chooses.
        models: by which everything is priced.
        name: of the model.
    """

    strategy: Strategy
    batch: int
    micro_batches: int | None
    models: CostModels
    name: str = ""

    def planned(self, model: Model, samples: int, cluster: Cluster) -> Planned:
        """The strategy's plan for a model that is of a micro-batch of so many samples.

        Raises:
            ValueError: a model, batch or cluster that the strategy can't handle, or no stages come of its answer.
            NoPlanError: it finds no plan, or its plan hasn't the memory.
        """
        made = self.strategy.plan(
            model, cluster, self.batch, samples=samples, micro_batches=self.micro_batches, latency=self.models.latency,
            communication=self.models.communication,
        )  # fmt: skip
        return as_planned(
            made, model, cluster, samples=samples, name=self.name, latency=self.models.latency,
            communication=self.models.communication,
        )  # fmt: skip

    def with_confidence(self, found: Planned, others: Iterable[Planned] = ()) -> Planned:
        """A plan with how sure its step is, and that it is the best of those that were compared."""
        known = confidence([_candidate(one) for one in (found, *others)], found.cluster)
        return dataclasses.replace(found, plan=dataclasses.replace(found.plan, confidence=known))

    def with_contingencies(self, found: Planned) -> Planned:
        """A plan with what the strategy answers without each single host; of interchangeable hosts, one is asked for.

        Where it has no plan for all that are left, it is asked for a power of two of them.
        """
        cluster = found.cluster
        if len(cluster.hosts) == 1:
            return found
        without = [self._without(kind, found) for kind in range(max(kinds_of(cluster)) + 1)]
        return dataclasses.replace(found, plan=with_planned(found.plan, without, cluster, found.model))

    def _without(self, kind: int, found: Planned) -> Fallback:
        """Of hosts that the strategy can't handle there is no plan, as of those that nothing fits."""
        for left in hosts_left(found.cluster, kind):
            try:
                plan = self.planned(found.model, self.batch // found.plan.num_micro_batches, left).plan
            except (NoPlanError, ValueError):
                continue
            return plan.stages, plan.step_s, plan.num_micro_batches
        return (), 0.0, 0


def _candidate(found: Planned) -> Candidate:
    """What the draws of costs take; what is estimated only takes what its strategy's own price says."""
    timeline = dataclasses.replace(found.timeline, step_s=found.plan.step_s)
    slicing = Slicing(choices_of(found), found.plan.step_s, 0.0, 0, 0.0)
    return Candidate(found.model, found.table, found.space, found.run, slicing, timeline)
