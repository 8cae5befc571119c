"""Problems whose transfers matter: made-up clusters of unlike hosts and links, by the simulated step."""

from __future__ import annotations

import dataclasses

import numpy as np

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing.makespan import Makespan
from placed_slicing import made_up

LAYERS, PER_HOST, FORWARD = 24, 4, 1 / 3
"""The part of a micro-batch's seconds that is forward."""
HOSTS = ((1, 1), (2, 2), (1, 3), (1, 1, 1))
"""Of each kind."""
SLOWER = (1.0, 3.0, 10.0)
"""Than in `made_up`, where a crossing takes 2 to 40 % of a layer."""


def with_transfers(seed: int) -> SlicingProblem:
    """A problem that is drawn from a seed; its objective is the simulated 1F1B step, with sends that block."""
    rng = np.random.default_rng(seed)
    hosts, size = HOSTS[seed % len(HOSTS)], int(2 ** rng.integers(2, 6))
    problem = made_up(seed, LAYERS, list(hosts), size, per_host=PER_HOST)
    assert problem.sites is not None
    slower = SLOWER[seed // len(HOSTS) % len(SLOWER)]
    sites = dataclasses.replace(problem.sites, crossing_s=problem.sites.crossing_s * slower)
    objective = Makespan(FORWARD * np.where(np.isinf(problem.costs_s), 0.0, problem.costs_s))
    return dataclasses.replace(problem, sites=sites, per_step_s=None, objective=objective)


def by_the_formula(problem: SlicingProblem) -> SlicingProblem:
    """The same with Alpa's objective, which the DP solves."""
    return dataclasses.replace(problem, objective="training")
