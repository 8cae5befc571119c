"""Equal stages: the same number of layers and devices for each."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import final

import numpy as np

from alpa_dejavu.problem import SlicingProblem, StageChoice
from alpa_dejavu.slicing._base import Slicer


@final
@dataclasses.dataclass(frozen=True)
class Uniform(Slicer):
    """The null model: of all equal cuts with one submesh and one config for all stages, the cheapest.

    Layers that don't divide evenly go one each to the first stages.

    References:
        Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM, SC 2021.
    """

    def _search(self, problem: SlicingProblem) -> tuple[tuple[StageChoice, ...], float, int]:
        best: tuple[StageChoice, ...] = ()
        best_s, tried = math.inf, 0
        num_submeshes, num_configs = problem.costs_s.shape[2:]
        for s, c in itertools.product(range(num_submeshes), range(num_configs)):
            count, left = divmod(problem.num_devices, int(problem.submesh_sizes[s]))
            if not 1 <= count <= problem.num_layers or (left and problem.devices == "exactly"):
                continue
            tried += 1
            parts = np.array_split(np.arange(problem.num_layers), count)
            stages = tuple(StageChoice(int(part[0]), int(part[-1]), s, c) for part in parts)
            total = problem.total_s(stages)
            if total < best_s:
                best, best_s = stages, total
        return best, 0.0, tried
