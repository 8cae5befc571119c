"""The whole way of a problem: it is relaxed, annealed, recovered and polished, and a lower bound is found."""

from __future__ import annotations

import dataclasses
import math
from typing import final

import numpy as np

from alpa_dejavu.problem import Objective, SlicingProblem, StageChoice
from alpa_dejavu.slicing._branch import BoundedAnswer, BranchAndBound
from alpa_dejavu.slicing._relaxed import Relaxation
from alpa_dejavu.slicing.makespan import Makespan, least_makespan_floor
from alpa_dejavu.slicing.relaxation import Cost
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray
from alpa_dejavu.slicing.relaxation._chain import Annealed, anneal
from alpa_dejavu.slicing.relaxation._draws import drawn
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation._measure import PlanCost
from alpa_dejavu.slicing.relaxation._polish import by_moves
from alpa_dejavu.slicing.relaxation._slots import Placed, place

POOL = 64
"""So many plans are kept."""
MOVES, SEARCH = (40, 1), (16, 4)
"""The rounds of moves, and the number of plans moved at a time: by a named objective, and by another cost."""
SETTLED = 12
"""The number of plans that are compared by the objective itself."""
SLOTS_SHARE = 2
"""One start of so many is annealed by places."""
STEPS, MOST_BOUNDS, SLACK = 8, 16, 1e-3
"""The lower bound's changes of prices at a bound on the largest stage, number of such bounds, and slack."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class AnnealEnd:
    """The anneals of a problem: of the dynamic program over layers, and of plans with one place for each stage, which
    is None by an objective that has a name.
    """

    lattice: Lattice
    chain: Annealed
    placed: Placed | None


def solve(
    problem: SlicingProblem,
    *,
    starts: int,
    rounds: int,
    seed: int,
    cost: Cost | None,
    polish: bool,
    plans: tuple[tuple[StageChoice, ...], ...],
) -> tuple[tuple[StageChoice, ...], float, AnnealEnd | None]:
    """Solves a slicing problem by relaxing plans to probabilities; settings are named as those of `Gradient`.

    Returns the best plan's stages, a lower bound in seconds on all plans, and the anneals; None where some layer is in
    no stage that is offered.
    """
    lattice = Lattice(problem)
    if not lattice.feasible:
        return (), math.inf, None
    chain = anneal(lattice, starts, rounds, seed)
    measure = PlanCost(problem, cost)
    others = Batch.of(plans) if plans else None
    first = [batch for batch in (others, drawn(lattice, measure.table, chain, seed)) if batch is not None]
    placed, stages = None, tuple[StageChoice, ...]()
    if first:
        pool = Batch.joined(first)
        pool = pool.take(np.argsort(measure(pool), kind="stable"))
        if measure.cost is not None:
            placed, more = place(lattice, measure, chain, pool, max(starts // SLOTS_SHARE, 1), rounds, seed)
            pool = Batch.joined([pool, more])
        pool = pool.distinct()
        pool = pool.take(np.argsort(measure(pool), kind="stable")[:POOL])
        if polish and math.isfinite(measure(pool.take(np.array([0])))[0]):
            pool = by_moves(measure, pool, *(MOVES if measure.cost is None else SEARCH))
        few = pool.take(np.arange(min(len(pool), SETTLED)))
        few = few if others is None else Batch.joined([few, others])
        stages = few.stages(measure.settled(few))
    best_s = problem.total_s(stages) if stages else math.inf
    stages = stages if math.isfinite(best_s) else ()
    return stages, _lower_bound(lattice, chain, best_s), AnnealEnd(lattice, chain, placed)


def _lower_bound(lattice: Lattice, ended: Annealed, best_s: float) -> float:
    problem = lattice.problem
    if isinstance(problem.objective, Makespan):
        return least_makespan_floor(problem)
    if isinstance(problem.objective, Objective):
        return 0.0
    nearest = np.abs(ended.values[-1] * lattice.unit_s - best_s).argmin() if math.isfinite(best_s) else 0
    return certificate(lattice, ended.end.prices[int(nearest)], best_s)


def certificate(lattice: Lattice, prices: FloatArray, best_s: float) -> float:
    """Returns a lower bound, in seconds, on the cost of any plan, from a Lagrangian relaxation at bounds on the largest
    stage up to the cost of a known plan, by the prices, shape (R,), of all that there is of each resource in units of
    `lattice.unit_s` seconds.
    """
    choices = lattice.choices
    bounds, floors = choices.bounds()
    if not len(bounds):
        return math.inf
    available = np.maximum(choices.available, 1)
    of_unit = prices[: len(available)] * lattice.unit_s / available
    best_prices, solved = np.where(choices.exact, of_unit, np.maximum(of_unit, 0.0)), 0

    def by_prices(bound: float, below: float, _: float) -> BoundedAnswer:
        nonlocal best_prices, solved
        solved += 1
        priced = Relaxation(choices, bound).tightened(below, best_prices, STEPS)
        best_prices = priced.prices if math.isfinite(priced.value) else best_prices
        return priced.value, ()

    bounded = BranchAndBound(lattice.problem, by_prices, bounds, floors, best_s, SLACK, relaxed=True)
    return bounded.run(lambda: solved < MOST_BOUNDS)[1]
