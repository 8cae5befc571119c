"""Every slicing there is: the truth, for small problems."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import final

from alpa_dejavu.problem import SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Slicer


@final
@dataclasses.dataclass(frozen=True)
class Exhaustive(Slicer):
    """Tries all; exact. The number of slicings grows exponentially with the layers: keep to eight or so."""

    def _search(self, problem: SlicingProblem) -> tuple[tuple[StageChoice, ...], float, int]:
        best: tuple[StageChoice, ...] = ()
        best_s, tried = math.inf, 0
        for stages in _slicings(problem, 0, problem.num_devices):
            tried += 1
            total = problem.total_s(stages)
            if total < best_s:
                best, best_s = stages, total
        return best, best_s, tried


def _slicings(problem: SlicingProblem, first: int, devices: int) -> Iterator[tuple[StageChoice, ...]]:
    """All ways to put layers first.. on at most so many devices, at finite cost."""
    if first == problem.num_layers:
        yield ()
        return
    num_submeshes, num_configs = problem.costs_s.shape[2:]
    for last, s, c in itertools.product(range(first, problem.num_layers), range(num_submeshes), range(num_configs)):
        left = devices - int(problem.submesh_sizes[s])
        if left >= 0 and math.isfinite(problem.costs_s[first, last, s, c]):
            for rest in _slicings(problem, last + 1, left):
                yield (StageChoice(first, last, s, c), *rest)
