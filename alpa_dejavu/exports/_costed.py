"""Writers for simulators, which need more than a plan says: what each of its layers computes and sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, final

from alpa_dejavu.costs.stage_costs import StageCostModel
from alpa_dejavu.exports._target import Files, Writer
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Plan

if TYPE_CHECKING:
    from alpa_dejavu.planning.changed.kept import Kept

__all__ = ["CostedWriter"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CostedWriter(Writer):
    """A writer of files that follow from a plan and the costs of its model's layers.

    Attributes:
        files: the function that makes the files.
        costs: the model of costs; None: the plan's model, which must be a known one, is traced and priced afresh.
    """

    files: Callable[[Plan, StageCostModel], Files]
    costs: StageCostModel | None = None

    def knowing(self, plan: Plan, kept: Kept | None) -> CostedWriter:
        """Returns the writer with the costs that follow from what is kept beside the plan."""
        if kept is None:
            return self
        from alpa_dejavu.planning.changed.kept_task import kept_prices

        given = kept_prices(plan, kept)
        return dataclasses.replace(self, costs=StageCostModel(kept.model, given.cluster, given.models))

    def write(self, plan: Plan, model: Transformer | None) -> Files:
        """Returns the files; of the model its layers matter, not the sizes."""
        return self.files(plan, self.costs or _afresh(plan))


def _afresh(plan: Plan) -> StageCostModel:
    from alpa_dejavu.planning.given.plan_estimate import PlanEstimator

    costs = PlanEstimator(plan).estimate(plan).table.stage_costs
    assert costs is not None, "a table that was priced keeps its prices"
    return costs
