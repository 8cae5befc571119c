"""The whole way of a problem: it is relaxed, annealed, recovered and polished, and a lower bound is found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.problem import Objective, SlicingProblem, StageChoice
from alpa_dejavu.slicing._branch import Answer, BranchAndBound
from alpa_dejavu.slicing._relaxed import Relaxation
from alpa_dejavu.slicing.makespan import Makespan, least_makespan_floor
from alpa_dejavu.slicing.relaxation import _chain_search
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray
from alpa_dejavu.slicing.relaxation._chain_search import Annealed
from alpa_dejavu.slicing.relaxation._lattice import Lattice
from alpa_dejavu.slicing.relaxation._measure import Measure
from alpa_dejavu.slicing.relaxation._plan import Cost
from alpa_dejavu.slicing.relaxation._polish import by_moves
from alpa_dejavu.slicing.relaxation._slot_search import Placed, begin, place

POOL = 64
"""So many plans are kept."""
MOVES, SEARCH = (40, 1), (16, 4)
"""The rounds of moves, and the number of plans moved at a time: by a named objective, and by another cost."""
SETTLED = 12
"""The number of plans that are compared by the objective itself."""
SLOTS_SHARE = 2
"""One start of so many is annealed by places."""


@final
@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the gradient-based slicer, as the attributes of these names of `Gradient`: how many starts and
    rounds its anneal has, its seed, the cost to relax, whether plans are polished, and plans that take part in that.
    """

    starts: int
    rounds: int
    seed: int
    cost: Cost | None
    polish: bool
    plans: tuple[tuple[StageChoice, ...], ...]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Relaxed:
    """The end of a problem's anneal, from which the slicer `Gradient` goes on when costs have changed.

    Attributes:
        chain: the end of the anneal of the dynamic program over layers.
        placed: the end of the anneal of plans with one place for each stage; None if that wasn't made, as with an
            objective that has a name.
    """

    chain: Annealed
    placed: Placed | None


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Solved:
    """The gradient-based slicer's answer to a problem: the best plan's stages, a lower bound in seconds on all plans,
    and the end of the anneal, from which another one can start.
    """

    stages: tuple[StageChoice, ...]
    lower_bound_s: float
    relaxed: Relaxed | None


def solve(problems: Sequence[SlicingProblem], settings: Settings, begun: Relaxed | None = None) -> list[Solved]:
    """Solves slicing problems by relaxing plans to probabilities; those of the same shapes are annealed at once, with
    all their starts.

    Args:
        problems: the slicing problems.
        settings: the slicer's settings.
        begun: the end of an earlier anneal, to start from; None: starts are random.

    Raises:
        ValueError: `begun` is from a problem of other shapes.
    """
    lattices = [Lattice(problem) for problem in problems]
    if begun is not None:
        _check_begun(lattices, begun)
    feasible = [n for n, lattice in enumerate(lattices) if lattice.feasible]
    groups: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for n in feasible:
        groups.setdefault(tuple(np.shape(part) for part in lattices[n].arrays), []).append(n)
    chains: dict[int, Annealed] = {}
    start = None if begun is None else [(begun.chain.log_bound, begun.chain.prices)]
    for members in groups.values():
        ended = _chain_search.anneal(
            [lattices[n] for n in members], settings.starts, settings.rounds, settings.seed, start
        )
        chains |= dict(zip(members, ended, strict=True))
    placed = begun.placed if begun is not None else None
    return [
        _solved(lattice, chains[n], settings, placed) if n in chains else Solved((), math.inf, None)
        for n, lattice in enumerate(lattices)
    ]


def _check_begun(lattices: Sequence[Lattice], begun: Relaxed) -> None:
    for lattice in lattices:
        resources, num_prices = lattice.arrays.uses.shape[1], begun.chain.prices.shape[1]
        if resources != num_prices or (begun.placed and begun.placed.choice.shape[2] != lattice.arrays.uses.shape[0]):
            raise ValueError(
                f"gradient: the relaxed plan to begin with is of another problem: it has prices for {num_prices} "
                f"resources, but the problem has {resources}, or other submeshes and configs; begin anew"
            )


def _solved(lattice: Lattice, ended: Annealed, settings: Settings, begun: Placed | None) -> Solved:
    problem = lattice.problem
    measure = Measure(problem, settings.cost)
    table = measure.table
    given = Batch.of(settings.plans) if settings.plans else None
    drawn = _chain_search.drawn(lattice, table, ended, settings.seed)
    plans_to_begin = [each for each in (given, drawn) if each is not None]
    placed = None
    if plans_to_begin:
        plans = Batch.joined(plans_to_begin)
        plans = plans.take(np.argsort(measure(plans), kind="stable"))
        if measure.cost is not None:
            start = begun or begin(lattice, ended, plans, max(settings.starts // SLOTS_SHARE, 1), settings.seed)
            placed, more = place(lattice, measure, start, settings.rounds, settings.seed, begun is not None)
            plans = Batch.joined([plans, more])
        plans = plans.distinct()
        plans = plans.take(np.argsort(measure(plans), kind="stable")[:POOL])
        if settings.polish and math.isfinite(measure(plans.take(np.array([0])))[0]):
            plans = by_moves(measure.table, measure, plans, *(MOVES if measure.cost is None else SEARCH))
        few = plans.take(np.arange(min(len(plans), SETTLED)))
        few = few if given is None else Batch.joined([few, given])
        stages = few.stages(measure.settled(few))
    if not plans_to_begin or not math.isfinite(problem.total_s(stages)):
        stages = ()
    best_s = problem.total_s(stages) if stages else math.inf
    return Solved(stages, _lower_bound(lattice, ended, best_s), Relaxed(ended, placed))


def _lower_bound(lattice: Lattice, ended: Annealed, best_s: float) -> float:
    problem = lattice.problem
    if isinstance(problem.objective, Makespan):
        return least_makespan_floor(problem)
    if isinstance(problem.objective, Objective):
        return 0.0
    nearest = np.abs(ended.values[-1] * lattice.unit_s - best_s).argmin() if math.isfinite(best_s) else 0
    return certificate(lattice, ended.prices[int(nearest)], best_s)


STEPS, MOST_BOUNDS, SLACK = 8, 16, 1e-3


def certificate(lattice: Lattice, prices: FloatArray, best_s: float) -> float:
    """Returns a lower bound, in seconds, on the cost of any plan, from a Lagrangian relaxation at bounds on the largest
    stage.

    Args:
        lattice: the slicing problem, prepared for the relaxation.
        prices: shape (R,), the price of all that there is of each of R resources, in units of `lattice.unit_s` seconds.
        best_s: the cost of a plan that is known; no larger bound is looked for.
    """
    problem: SlicingProblem = lattice.problem
    bounds, floors = lattice.choices.bounds()
    if not len(bounds):
        return math.inf
    search = _Priced(lattice, prices)
    bounded = BranchAndBound(problem, search.solve, bounds, floors, best_s, SLACK, relaxed=True)
    _, at_least, _ = bounded.run(lambda: search.solved < MOST_BOUNDS)
    return at_least


@final
class _Priced:
    """A search within one bound, by prices alone; they are kept from one bound to the next."""

    def __init__(self, lattice: Lattice, prices: FloatArray) -> None:
        self._choices = lattice.choices
        available = np.maximum(lattice.choices.available, 1)
        each = prices[: len(available)] * lattice.unit_s / available
        self._prices = np.where(lattice.choices.exact, each, np.maximum(each, 0.0))
        self.solved = 0

    def solve(self, bound: float, below: float, here: float) -> Answer:
        """Returns a lower bound on the summed weights of slicings whose stages cost at most `bound`, and never a
        slicing.
        """
        self.solved += 1
        priced = Relaxation(self._choices, bound).tightened(below, self._prices, STEPS)
        if math.isfinite(priced.value):
            self._prices = priced.prices
        return priced.value, ()
