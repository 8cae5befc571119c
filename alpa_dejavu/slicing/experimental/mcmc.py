"""FlexFlow's search: a random walk over plans that takes what is better, and at times what is worse.

With what chance it takes the worse falls as it goes on (simulated annealing).
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
from collections.abc import Callable
from typing import final

from alpa_dejavu.problem import Slicing, SlicingProblem, checks
from alpa_dejavu.slicing._base import Slicer, best_of_families
from alpa_dejavu.slicing._baselines import Uniform
from alpa_dejavu.slicing.experimental._random_moves import RandomMoves, Stages

Energy = tuple[int, float]
"""The number of rules that a plan breaks, then its cost."""
COLDEST = 1e-4
"""At the end, what is worse by this fraction of the best is taken once in e times."""
PER_VIOLATION = 0.25
"""One more rule broken counts as this fraction of the best. What is allowed can lie scattered in what isn't."""
MOST_ENERGIES = 20_000
"""The number of plans that are remembered with their costs."""


@final
@dataclasses.dataclass(frozen=True)
class Mcmc(Slicer):
    """A slicer, which cuts layers into stages by simulated annealing, with random moves of cuts, submeshes and configs;
    it takes any objective, and gives no lower bound.

    It is experimental: no better than the default, `dynamic`, in docs/results/slicers.md.

    Attributes:
        proposals: how many moves are tried, in all chains together.
        seconds: if given, the search goes on for that long instead of counting moves. Its plan then depends on the
            machine, and isn't always the same.
        seed: the seed of the moves. The same seed gives the same plan.
        chains: how many independent walks are made, one after the other, each with its part of the budget.
        start: the first chain's first plan: "uniform" (equal stages, if allowed) or "random"; other chains' is random.
        hottest: the first temperature: a plan that is worse by this fraction of the best cost is taken once in e times.
        clock: a function that tells the time in seconds, for `seconds`.

    Raises ValueError for numbers that aren't above 0, and another start.

    References:
        Jia et al., Beyond Data and Model Parallelism for Deep Neural Networks, MLSys 2019, section 6.2.
        Kirkpatrick et al., Optimization by Simulated Annealing, Science 220, 1983.

    >>> Mcmc(proposals=100, seed=1)
    Mcmc(proposals=100, seconds=None, seed=1, chains=4, start='uniform', hottest=0.1)
    """

    proposals: int = 10_000
    seconds: float | None = None
    seed: int = 0
    chains: int = 4
    start: str = "uniform"
    hottest: float = 0.1
    clock: Callable[[], float] = dataclasses.field(default=time.perf_counter, repr=False, compare=False)

    def __post_init__(self) -> None:
        checks.count("mcmc", "proposals", self.proposals)
        checks.count("mcmc", "chains", self.chains)
        checks.positive("mcmc", "hottest", self.hottest)
        if self.seconds is not None:
            checks.positive("mcmc", "seconds", self.seconds)
        checks.one_of("mcmc", "start", self.start, ("uniform", "random"))

    def slice(self, problem: SlicingProblem) -> Slicing:
        """Anneals plans in one chain after the other, and returns the best allowed slicing that was met."""
        if problem.families is not None:
            return best_of_families(lambda family, _: self.slice(family), problem)
        started = time.perf_counter()
        rng = random.Random(self.seed)
        walk = _PlanWalk(problem, RandomMoves(problem, rng), rng)
        first = Uniform().slice(problem).stages if self.start == "uniform" else ()
        for chain in range(self.chains):
            # Each chain has its part of the budget; some have one proposal more.
            proposals = len(range(chain, self.proposals, self.chains))
            budget = _Budget(proposals, None if self.seconds is None else self.seconds / self.chains, self.clock)
            if not walk.begin(first if chain == 0 else ()):
                break
            while (progress := budget.progress()) < 1:
                # As long as nothing allowed is found there is nothing to settle on.
                walk.step(self.hottest * (COLDEST / self.hottest) ** (progress if walk.best else 0.0))
        return Slicing.of(problem, walk.best, iterations=walk.steps, seconds=time.perf_counter() - started)


@final
class _Budget:
    """A chain's budget of proposals or seconds, and how much of it is gone."""

    def __init__(self, proposals: int, seconds: float | None, clock: Callable[[], float]) -> None:
        self._proposals, self._seconds, self._clock = proposals, seconds, clock
        self._done, self._started = 0, clock()

    def progress(self) -> float:
        """Returns the share of the chain's budget that is spent, from 0 to 1; each call counts one proposal."""
        if self._seconds is not None:
            return (self._clock() - self._started) / self._seconds
        self._done += 1
        return (self._done - 1) / self._proposals if self._proposals else 1.0


@final
class _PlanWalk:
    """A walk: the plan that it is at, the best plan that it came by (nothing if none was allowed), and its steps."""

    def __init__(self, problem: SlicingProblem, moves: RandomMoves, rng: random.Random) -> None:
        self._problem, self._moves, self._rng = problem, moves, rng
        self._energies: dict[Stages, Energy] = {}
        self._plan: Stages = ()
        self._energy: Energy = (0, math.inf)
        self.best: Stages = ()
        self._best_s = math.inf
        self.steps = 0

    def begin(self, stages: Stages) -> bool:
        """Moves the walk to a plan, to a random one if none is given, and returns whether there is one."""
        self._plan = stages or self._moves.plan()
        if self._plan:
            self._energy = self._of(self._plan)
            self._keep()
        return bool(self._plan)

    def step(self, temperature: float) -> None:
        """Proposes one random move, and takes it if it is better or by the chance that the temperature gives."""
        self.steps += 1
        proposed = self._moves.moved(self._plan)
        energy = self._of(proposed)
        if energy <= self._energy or self._rng.random() < self._chance(energy, temperature):
            self._plan, self._energy = proposed, energy
            self._keep()

    def _chance(self, energy: Energy, temperature: float) -> float:
        """Returns the chance that a worse plan is taken."""
        violations, cost_s = energy
        if violations:
            worse = PER_VIOLATION * (violations - self._energy[0])
        elif self._best_s > 0:
            worse = (cost_s - self._energy[1]) / self._best_s
        else:
            return 0.0
        return math.exp(-worse / temperature)

    def _of(self, stages: Stages) -> Energy:
        energy = self._energies.get(stages)
        if energy is None:
            total_s = self._problem.total_s(stages)
            energy = 0 if math.isfinite(total_s) else max(self._moves.violations(stages), 1), total_s
            if len(self._energies) >= MOST_ENERGIES:
                self._energies.clear()
            self._energies[stages] = energy
        return energy

    def _keep(self) -> None:
        if self._energy[0] == 0 and self._energy[1] < self._best_s:
            self.best, self._best_s = self._plan, self._energy[1]
