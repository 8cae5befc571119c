"""The interface of slicers, and the limits on the exact one's work."""

from __future__ import annotations

import abc
import dataclasses
import math
import time
from collections.abc import Callable
from typing import final

import numpy as np

from alpa_dejavu._util.ties import TOLERANCE, least
from alpa_dejavu.problem import Objective, Slicing, SlicingProblem, StageChoice


class Slicer(abc.ABC):
    """An algorithm that cuts a model's layers into pipeline stages, each with its devices.

    `alpa_dejavu.testing.check_slicer` checks whether an implementation is sound.
    """

    @abc.abstractmethod
    def slice(self, problem: SlicingProblem) -> Slicing:
        """Returns the best slicing (the stages, with their cost and a lower bound) that it finds for a problem; one
        without stages and of infinite cost if it finds none.

        The same problem always gets the same stages. `Slicing.of` makes such a result from stages.
        """


def best_of_families(sliced: Callable[[SlicingProblem, float], Slicing], problem: SlicingProblem) -> Slicing:
    """Returns the best of the slicings of each family of stages. Those by whose bounds nothing is better than the best
    slicing so far aren't sliced.

    Args:
        sliced: a function that slices a family's problem, and needn't find slicings of so many seconds or more.
        problem: one with families.
    """
    assert problem.families is not None, "there are families"
    bounds, slicings, best_s = problem.least_of_families_s(), dict[int, Slicing](), math.inf
    for n in np.argsort(bounds, kind="stable").tolist():
        if math.isinf(bounds[n]) or bounds[n] > best_s * (1 + TOLERANCE):
            break
        of_family, submeshes, configs = problem.of_family(problem.families[n])
        slicing = sliced(of_family, best_s)
        stages = tuple(
            dataclasses.replace(stage, submesh=int(submeshes[stage.submesh]), config=int(configs[stage.config]))
            for stage in slicing.stages
        )
        slicings[n], best_s = dataclasses.replace(slicing, stages=stages), min(best_s, slicing.cost_s)
    every = [slicings[n] for n in sorted(slicings)]
    bound_s = min((slicing.lower_bound_s for slicing in every), default=math.inf)
    best = least(every, key=lambda slicing: slicing.cost_s).stages if every else ()
    rounds, seconds = sum(slicing.iterations for slicing in every), sum(slicing.seconds for slicing in every)
    return Slicing.of(problem, best, bound_s, rounds, seconds)


class Cheapest:
    """The cheapest of the plans that a slicer tries, and how many it tried; the first of equals."""

    def __init__(self, problem: SlicingProblem) -> None:
        self._problem, self._started = problem, time.perf_counter()
        self._stages: tuple[StageChoice, ...] = ()
        self._cost_s, self.tried = math.inf, 0

    def add(self, stages: tuple[StageChoice, ...]) -> None:
        total_s = self._problem.total_s(stages)
        if total_s < self._cost_s:
            self._stages, self._cost_s = stages, total_s

    def slicing(self, exact: bool = False) -> Slicing:
        """Returns it as a slicing; if `exact`, nothing is cheaper."""
        bound_s = self._cost_s if exact else 0.0
        return Slicing.of(self._problem, self._stages, bound_s, self.tried, time.perf_counter() - self._started)


def check_has_recurrence(owner: str, problem: SlicingProblem) -> None:
    """Checks that a problem's objective has a name; `owner` is the slicer's, for the message.

    Raises:
        ValueError: the objective is an `Objective`, a Python function of the stages.
    """
    if isinstance(problem.objective, Objective):
        raise ValueError(
            f"{owner} has no recurrence for the objective {problem.objective!r}; take a slicer that tries plans, as "
            f"'mcmc' or, with few layers, 'exhaustive' does"
        )


@final
@dataclasses.dataclass(frozen=True)
class Effort:
    """The limits on the work of the exact slicer, which cuts layers into stages; work is counted, not timed, so that
    the same problem always gets the same answer.

    Attributes:
        widths: how many partial slicings beam searches keep, on hosts of unlike kinds: one search after the other,
            while there is something to win.
        steps: how often the prices of devices are changed at each bound on the largest stage.
        work: how many partial slicings beam searches make, or what takes as long, at most; a million takes about half a
            second.
        few_sums: a dynamic program of so many sums, on alike hosts, is faster than finding prices of devices.
        few_states: on hosts of unlike kinds nothing is left out, and prices don't pay, with at most so many
            combinations of used devices, last site and next stage.
        most_arcs: no graph of layers and numbers of stages has more arcs: they would take more than about 1.5 GB.
        most_table_bytes: no table of a dynamic program is larger.
        most_entries: where a relaxation's arrays would have more entries, each transfer counts as its cheapest one.
        most_bounds: with more different stage costs than that, close ones are treated together.
        buckets_per_e: the number of intervals to a factor of e in which they then are treated together.
    """

    widths: tuple[int, ...] = (64, 256, 2048)
    steps: int = 60
    work: int = 4_000_000
    few_sums: int = 100_000_000
    few_states: int = 100_000
    most_arcs: int = 15_000_000
    most_table_bytes: int = 2**31
    most_entries: int = 20_000_000
    most_bounds: int = 2_000_000
    buckets_per_e: int = 10_000
