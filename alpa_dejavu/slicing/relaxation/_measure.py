"""The costs of whole plans, many at once: by the problem's objective, or by a function that the caller gives."""

from __future__ import annotations

import functools
from typing import Any, final

import numpy as np

from alpa_dejavu._util.ties import first_least
from alpa_dejavu.problem import Objective, SlicingProblem
from alpa_dejavu.slicing.makespan import Makespan
from alpa_dejavu.slicing.relaxation import Cost, RelaxedPlan
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, PlanTable
from alpa_dejavu.slicing.relaxation.pipeline import many, pipeline_s

FORWARD = 1 / 3
"""The share of a stage that is forward, where nothing says how much is."""
PLANS, PLACES, MICRO_BATCHES = 64, 8, 8
"""Shapes are rounded up to these times a power of two."""


@final
class PlanCost:
    """A function from plans to seconds, by which they are compared; infinite where a plan isn't allowed.

    Attributes:
        cost: the function of a relaxed plan by which plans are annealed and compared; None: the problem's objective is.
        forward_s: shape (L, L, S, C), the forward part of the problem's costs.
        final: whether the best plans have to be compared once more, by the problem's objective itself.
    """

    def __init__(self, problem: SlicingProblem, cost: Cost | None) -> None:
        self.table, self.cost = PlanTable(problem), cost
        self.forward_s = problem.costs_s * FORWARD
        objective = problem.objective
        self.final = False
        if isinstance(objective, Makespan):
            self.forward_s = objective.forward_s
            self.final = cost is None
            self.cost = cost or _pipeline(_rounded(problem.num_micro_batches, MICRO_BATCHES))
        elif isinstance(objective, Objective):
            self.final = cost is None

    def __call__(self, plans: Batch) -> FloatArray:
        """Returns the seconds of N plans, shape (N,)."""
        problem = self.table.problem
        if self.cost is None:
            if not isinstance(problem.objective, Objective):
                return self.table.totals_s(plans)
            return np.array([problem.total_s(plans.stages(n)) for n in range(len(plans))])
        allowed = self.table.allowed(plans)
        totals = np.full(len(plans), np.inf)
        if allowed.any():
            some = plans.take(allowed)
            seconds = np.asarray(many(self.cost, self.seen(some)), dtype=np.float64)[: len(some)]
            totals[allowed] = np.where(np.isnan(seconds), np.inf, seconds)
        return totals

    def seen(self, plans: Batch) -> RelaxedPlan:
        """Returns N plans as one `RelaxedPlan`, padded to a few shapes, so that JAX compiles less often."""
        table, num = self.table, _rounded(len(plans), PLANS)
        places = _rounded(plans.ends.shape[1], PLACES)

        def padded(values: Any) -> Any:
            out = np.zeros((num, places), dtype=np.float32)
            out[: len(plans), : plans.ends.shape[1]] = values
            return out

        costs, forward = table.costs_s(plans), table.entries(self.forward_s, plans)
        count = np.ones(num, dtype=np.int32)
        count[: len(plans)] = plans.count
        size = np.full(num, table.problem.num_micro_batches, dtype=np.int32)
        parts = (
            forward, np.maximum(costs - forward, 0.0), table.once_s(plans), table.crossing_s(plans),
            table.devices(plans), table.risk(plans),
        )  # fmt: skip
        return RelaxedPlan(*[*(padded(part) for part in parts), count, size])

    def settled(self, plans: Batch) -> int:
        """Returns the index of the best of some plans, by the problem's objective itself."""
        if not self.final:
            return int(first_least(self(plans)))
        totals = [self.table.problem.total_s(plans.stages(n)) for n in range(len(plans))]
        return int(first_least(np.array(totals)))


def _rounded(count: int, least: int) -> int:
    while least < count:
        least *= 2
    return least


@functools.lru_cache
def _pipeline(most_micro_batches: int) -> Cost:
    """Returns the pipeline's cost for a number of micro-batches: one function each time, so it is compiled once."""
    return functools.partial(pipeline_s, most_micro_batches=most_micro_batches)
