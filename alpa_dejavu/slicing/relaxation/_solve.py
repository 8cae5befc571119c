"""The whole way of a problem: it is relaxed, annealed, recovered and polished, and a lower bound is found; and the
record of its anneal for plots.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np

from alpa_dejavu.problem import Objective, SlicingProblem, StageChoice
from alpa_dejavu.slicing._branch import BoundedAnswer, BranchAndBound
from alpa_dejavu.slicing._relaxed import Relaxation
from alpa_dejavu.slicing.makespan import Makespan, least_makespan_floor
from alpa_dejavu.slicing.relaxation import Cost
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray
from alpa_dejavu.slicing.relaxation._chain import Annealed, BoundAndPrices, anneal, softs
from alpa_dejavu.slicing.relaxation._draws import StageChances, drawn
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
    """The anneals of a problem: over layers, and of one place for each stage (None by an objective that has a name)."""

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


ENOUGH = 1e-3
"""The probability that some layer has to have in the last place that a trace shows."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Trace:
    """The history of one start of an anneal, round by round, for plots: that whose relaxed cost came out least among
    those that ended near the plan that was found.

    Attributes:
        assignment: shape (T, L, K), the probability of each of L layers to be in each of K stages, in each of T rounds.
        cost_s: shape (T,), the relaxed plan's cost. By the objectives that have a name it is the Lagrangian's, which
            may be under any plan's.
        temperature_s: shape (T,), the temperature of each round, in seconds.
    """

    assignment: FloatArray
    cost_s: FloatArray
    temperature_s: FloatArray


def trace(ended: AnnealEnd, cost_s: float) -> Trace:
    """Returns the history of the best start that ended near the plan that was found, which costs `cost_s`."""
    lattice, placed = ended.lattice, ended.placed
    if placed is None:
        return _of_chain(lattice, ended.chain, cost_s)
    best = int(placed.seconds[-1].argmin())
    layers = placed.layers[:, best, :, : lattice.problem.num_layers]
    return Trace(_likely(np.swapaxes(layers, 1, 2)), placed.seconds[:, best], placed.temperatures * lattice.unit_s)


def _of_chain(lattice: Lattice, ended: Annealed, cost_s: float) -> Trace:
    best = int(np.abs(ended.values[-1] * lattice.unit_s - cost_s).argmin())
    bounds, prices = (part[:, best] for part in ended.history)
    values = softs(lattice.arrays, BoundAndPrices(bounds, prices), ended.temperatures, lattice.limited)
    rests, laters = (np.asarray(part)[:, None] for part in values)
    rows = []
    for n, temperature in enumerate(ended.temperatures.tolist()):
        chain = BoundAndPrices(bounds[[n]], prices[[n]])
        rows.append(_assignment(lattice, StageChances(lattice, chain, rests[n], laters[n], temperature)))
    return Trace(_likely(np.stack(rows)), ended.values[:, best] * lattice.unit_s, ended.temperatures * lattice.unit_s)


def _assignment(lattice: Lattice, chances: StageChances) -> FloatArray:
    """Returns the probability of each layer being in each stage, counted from the first; shape (L, L)."""
    size = lattice.problem.num_layers
    by_choice, by_end = chances.by_choice[0], chances.by_end[0]
    at: Any = np.zeros((size + 1, by_choice.shape[1]))
    at[0, 0] = 1.0
    rows = []
    for _ in range(size):
        begun = np.einsum("ig,igz->iz", at[:size], by_choice)
        stage = np.einsum("iz,izj->jz", begun, by_end)
        ends = stage.sum(axis=1)
        rows.append(np.cumsum(begun.sum(axis=1)) - np.cumsum(ends) + ends)
        at = np.concatenate([np.zeros_like(at[:1]), stage @ lattice.arrays.group])
    return np.stack(rows, axis=1)


def _likely(assignment: FloatArray) -> FloatArray:
    """Returns the probabilities without the places at the end that are never likely."""
    likely = np.flatnonzero(assignment.max(axis=(0, 1)) > ENOUGH)
    return np.asarray(assignment[:, :, : int(likely.max(initial=0)) + 1], dtype=np.float64)
