"""Equal stages: the same number of layers and devices for each."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from typing import final

import numpy as np

from alpa_dejavu.problem import Sites, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Slicer, best_of_families


@final
@dataclasses.dataclass(frozen=True)
class Uniform(Slicer):
    """The baseline slicer: of all cuts of layers into equal stages, with one submesh and one config for all stages, it
    takes the cheapest.

    Layers that don't divide evenly go one each to the first stages. On hosts of unlike kinds the stages have equally
    many devices, and go to the kinds in their order.

    References:
        Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
    """

    def slice(self, problem: SlicingProblem) -> Slicing:
        if problem.families is not None:
            return best_of_families(self, problem)
        started = time.perf_counter()
        best: tuple[StageChoice, ...] = ()
        best_s, tried = math.inf, 0
        sites = problem.sites
        rows = _rows(problem) if sites is None or sites.alike else _site_rows(sites, problem.num_stages)
        for row, c in itertools.product(rows, range(problem.costs_s.shape[3])):
            if not 1 <= len(row) <= problem.num_layers:
                continue
            tried += 1
            parts = np.array_split(np.arange(problem.num_layers), len(row))
            stages = tuple(StageChoice(int(part[0]), int(part[-1]), s, c) for part, s in zip(parts, row, strict=True))
            total = problem.total_s(stages)
            if total < best_s:
                best, best_s = stages, total
        return Slicing.of(problem, best, iterations=tried, seconds=time.perf_counter() - started)


def num_equal_stages(problem: SlicingProblem, size: int) -> int:
    """Returns how many stages of `size` devices each a plan of equal stages has: as many as there are devices for, or
    as the problem asks for.

    It is 0 if there are too few devices or layers for that, or if devices would be left over that have to be used.
    """
    most = problem.num_devices // size
    count = problem.num_stages or most
    suits = count * size == problem.num_devices or problem.devices == "at most"
    return count if suits and count <= min(most, problem.num_layers) else 0


def _rows(problem: SlicingProblem) -> list[list[int]]:
    """Returns rows of one submesh each, as many of it as there are devices for, or as are asked for."""
    counts = [num_equal_stages(problem, size) for size in problem.submesh_sizes.tolist()]
    return [[s] * count for s, count in enumerate(counts) if count]


def _site_rows(sites: Sites, num_stages: int | None) -> list[list[int]]:
    """Returns rows of sites with one number of devices each, as many as there are devices for, or as are asked for.

    They stand kind by kind.
    """
    sizes = sites.uses.sum(axis=1)
    rows = []
    for size in np.unique(sizes):
        left, row = sites.available.copy(), list[int]()
        of_size = np.flatnonzero(sizes == size)
        for s in sorted(of_size.tolist(), key=lambda s: tuple(-sites.uses[s])):
            uses = sites.uses[s]
            count = int((left[uses > 0] // uses[uses > 0]).min())
            left = left - count * uses
            row += [s] * count
        rows.append(row[:num_stages])
    return rows
