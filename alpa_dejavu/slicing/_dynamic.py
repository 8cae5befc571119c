"""The exact slicer: a search over bounds on the largest stage cost, with prices and dynamic programming for each.

Where stages are placed on hosts of unlike kinds there may be more states than can be looked at; then the answer says
what it may have missed.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import final

from alpa_dejavu.problem import Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Slicer, best_of_families, check_has_recurrence
from alpa_dejavu.slicing._effort import Effort
from alpa_dejavu.slicing._intervals import Intervals
from alpa_dejavu.slicing._placed import placed
from alpa_dejavu.slicing._uniform import Uniform


@final
@dataclasses.dataclass(frozen=True)
class Dynamic(Slicer):
    """The default slicer, which cuts layers into stages by an exact dynamic program, in float64; of equally cheap
    slicings it always takes the same one.

    On hosts of unlike kinds it is exact as long as the limits of `effort` allow it; if not, `Slicing.gap` tells how
    much may be left to win. On alike hosts it is always exact, but for problems in which memory limits, or transfers
    that depend on the stage before, matter on so many devices that tables would take gigabytes: then it may find
    nothing better than equal stages, and tells a gap.

    References:
        Zheng et al., Alpa, OSDI 2022, section 5.2: the recurrence. The search over bounds is this package's own.
        Handler and Zang, A dual algorithm for the constrained shortest path problem, Networks 10, 1980: the prices of
            devices, by which unlike hosts are sliced.
    """

    effort: Effort = dataclasses.field(default=Effort(), repr=False)

    def slice(self, problem: SlicingProblem) -> Slicing:
        started = time.perf_counter()
        check_has_recurrence("dynamic", problem)
        if problem.families is not None:
            return best_of_families(self, problem)
        sites, stages, at_least, rounds = problem.sites, tuple[StageChoice, ...](), 0.0, 0
        if sites is None or sites.uses.shape[1] == 1:
            stages, at_least, rounds = Intervals(_uncrowded(problem), self.effort).run()
            if not stages and math.isfinite(at_least):
                stages = Uniform().slice(problem).stages
        if sites is not None and not sites.alike and not math.isfinite(problem.total_s(stages)):
            stages, at_least, rounds = placed(problem, sites, self.effort)
        return Slicing.of(problem, stages, at_least, rounds, time.perf_counter() - started)


def _uncrowded(problem: SlicingProblem) -> SlicingProblem:
    """The problem in which submeshes fit on hosts in any mixture: its best stages are often few enough to do so."""
    sites = problem.sites
    return problem if sites is None else dataclasses.replace(problem, sites=sites.without_capacity())
