"""The slicers that others are measured against: equal stages, and, for small problems, every slicing there is."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Sites, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Cheapest, Slicer, best_of_families
from alpa_dejavu.slicing._choices import alike_sites


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
            return best_of_families(lambda family, _: self.slice(family), problem)
        best, sites, num_layers = Cheapest(problem), problem.sites, problem.num_layers
        if sites is None or sites.alike:
            counts = [num_equal_stages(problem, size) for size in problem.submesh_sizes.tolist()]
            rows = [[s] * count for s, count in enumerate(counts) if count]
        else:
            rows = _site_rows(sites, problem.num_stages)
        for row, c in itertools.product(rows, range(problem.costs_s.shape[3])):
            if 1 <= len(row) <= num_layers:
                best.tried += 1
                parts = np.array_split(np.arange(num_layers), len(row))
                best.add(
                    tuple(StageChoice(int(part[0]), int(part[-1]), s, c) for part, s in zip(parts, row, strict=True))
                )
        return best.slicing()


def num_equal_stages(problem: SlicingProblem, size: int) -> int:
    """Returns how many stages of `size` devices each a plan of equal stages has: as many as there are devices for, or
    as the problem asks for; 0 if devices or layers are too few, or devices that have to be used would be left.
    """
    most = problem.num_devices // size
    count = problem.num_stages or most
    suits = count * size == problem.num_devices or problem.devices == "at most"
    return count if suits and count <= min(most, problem.num_layers) else 0


def _site_rows(sites: Sites, num_stages: int | None) -> list[list[int]]:
    """Returns rows of sites of equally many devices, kind by kind, as many as there are devices for, or asked for."""
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
        best, sites = Cheapest(problem), problem.sites or alike_sites(problem)
        count = _count(problem, sites.uses, sites.available)
        if count > _MOST:
            raise ValueError(
                f"the slicer is 'exhaustive', but must be another: {problem.num_layers} layers can be sliced in "
                f"{float(count):.2g} ways, and it tries at most {_MOST}; take 'dynamic', which is exact, too, or fewer "
                "layers"
            )
        for stages in _slicings(problem, sites.uses, 0, sites.available):
            best.tried += 1
            best.add(stages)
        return best.slicing(exact=True)


def _count(problem: SlicingProblem, uses: NDArray[np.int64], available: NDArray[np.int64]) -> int:
    """Returns how many slicings `_slicings` makes."""
    choices = np.isfinite(np.asarray(problem.costs_s)).sum(axis=-1)

    @functools.cache
    def rest(first: int, left: tuple[int, ...]) -> int:
        if first == problem.num_layers:
            return 1
        count = 0
        for last, s in itertools.product(range(first, problem.num_layers), range(len(uses))):
            after = tuple((left - uses[s]).tolist())
            if min(after) >= 0:
                count += int(choices[first, last, s]) * rest(last + 1, after)
        return count

    return rest(0, tuple(map(int, available)))


def _slicings(
    problem: SlicingProblem, uses: NDArray[np.int64], first: int, available: NDArray[np.int64]
) -> Iterator[tuple[StageChoice, ...]]:
    """Yields all ways to put layers first.. on at most the available devices of each kind, at finite cost."""
    if first == problem.num_layers:
        yield ()
        return
    num_submeshes, num_configs = problem.costs_s.shape[2:]
    for last, s, c in itertools.product(range(first, problem.num_layers), range(num_submeshes), range(num_configs)):
        left = available - uses[s]
        if (left >= 0).all() and math.isfinite(problem.costs_s[first, last, s, c]):
            for rest in _slicings(problem, uses, last + 1, left):
                yield (StageChoice(first, last, s, c), *rest)
