"""Every slicing there is: the truth, for small problems."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Slicer

_MOST = 10**6


@final
@dataclasses.dataclass(frozen=True)
class Exhaustive(Slicer):
    """An exact slicer that tries all ways to cut layers into stages, whose number grows exponentially with the layers;
    a problem with too many is refused.

    Raises:
        ValueError: a problem has more than a million slicings.
    """

    def slice(self, problem: SlicingProblem) -> Slicing:
        started = time.perf_counter()
        best: tuple[StageChoice, ...] = ()
        best_s, tried = math.inf, 0
        sites = problem.sites
        uses = problem.submesh_sizes[:, None] if sites is None else sites.uses
        available = np.array([problem.num_devices]) if sites is None else sites.available
        count = _count(problem, uses, available)
        if count > _MOST:
            raise ValueError(
                f"the slicer is 'exhaustive', but must be another: {problem.num_layers} layers can be sliced in "
                f"{float(count):.2g} ways, and it tries at most {_MOST}; take 'dynamic', which is exact, too, or fewer "
                "layers"
            )
        for stages in _slicings(problem, uses, 0, available):
            tried += 1
            total = problem.total_s(stages)
            if total < best_s:
                best, best_s = stages, total
        return Slicing.of(problem, best, best_s, tried, time.perf_counter() - started)


def _count(problem: SlicingProblem, uses: NDArray[np.int64], available: NDArray[np.int64]) -> int:
    """Returns how many slicings `_slicings` makes."""
    choices = np.isfinite(problem.costs_s).sum(axis=-1)

    @functools.cache
    def rest(first: int, left: tuple[int, ...]) -> int:
        if first == problem.num_layers:
            return 1
        found = 0
        for last, s in itertools.product(range(first, problem.num_layers), range(len(uses))):
            after = tuple(int(each) for each in left - uses[s])
            if min(after) >= 0:
                found += int(choices[first, last, s]) * rest(last + 1, after)
        return found

    return rest(0, tuple(map(int, available)))


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
