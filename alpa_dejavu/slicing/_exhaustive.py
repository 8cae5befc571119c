"""Every slicing there is: the truth, for small problems."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Slicer


@final
@dataclasses.dataclass(frozen=True)
class Exhaustive(Slicer):
    """Tries all; exact. The number of slicings grows exponentially with the layers: keep to eight or so."""

    def _search(self, problem: SlicingProblem) -> tuple[tuple[StageChoice, ...], float, int]:
        best: tuple[StageChoice, ...] = ()
        best_s, tried = math.inf, 0
        sites = problem.sites
        uses = problem.submesh_sizes[:, None] if sites is None else sites.uses
        available = np.array([problem.num_devices]) if sites is None else sites.available
        for stages in _slicings(problem, uses, 0, available):
            tried += 1
            total = problem.total_s(stages)
            if total < best_s:
                best, best_s = stages, total
        return best, best_s, tried


def _slicings(
    problem: SlicingProblem, uses: NDArray[np.int64], first: int, available: NDArray[np.int64]
) -> Iterator[tuple[StageChoice, ...]]:
    """All ways to put layers first.. on at most the available devices of each kind, at finite cost."""
    if first == problem.num_layers:
        yield ()
        return
    num_submeshes, num_configs = problem.costs_s.shape[2:]
    for last, s, c in itertools.product(range(first, problem.num_layers), range(num_submeshes), range(num_configs)):
        left = available - uses[s]
        if (left >= 0).all() and math.isfinite(problem.costs_s[first, last, s, c]):
            for rest in _slicings(problem, uses, last + 1, left):
                yield (StageChoice(first, last, s, c), *rest)
