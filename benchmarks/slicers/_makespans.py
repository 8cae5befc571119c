"""`gradient` on simulated steps: problems whose transfers go over unlike links, next to the DP's plan and to `mcmc`."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from alpa_dejavu.problem import Slicing, SlicingProblem
from alpa_dejavu.slicing import Gradient, Mcmc, slicer
from alpa_dejavu.slicing.makespan import Makespan
from harness import Figure
from placed_slicing import made_up
from slicers._figure import Part, Scale

DIFFERENT = 1e-3
"""How far a plan's step by the DP's formula has to be off the simulated one to be counted as another."""
SAME = 1e-9


def measured(scale: Scale) -> Part:
    """Each problem by each slicer; `gradient` meets each once before, so that it is compiled."""
    rows = [_row(with_transfers(seed)) for seed in tqdm(range(scale.makespans), "makespan")]
    return Part((_better(rows), _never_worse(rows), _than_mcmc(rows)), {"problems": rows})


def _row(problem: SlicingProblem) -> dict[str, Any]:
    """Simulated steps of the plans: with the DP's plan among the starts, and alone; and of as much time of `mcmc`."""
    dp = slicer("dynamic").slice(by_the_formula(problem))
    started, alone = (_compiled(gradient, problem) for gradient in (Gradient(plans=(dp.stages,)), Gradient()))
    started_s = dp.seconds + started.seconds
    return {
        "dp_said_s": dp.cost_s,
        "dp_s": problem.total_s(dp.stages),
        "gradient_s": started.cost_s,
        "gradient_alone_s": alone.cost_s,
        "mcmc_s": Mcmc(seconds=started_s).slice(problem).cost_s,
        "mcmc_alone_s": Mcmc(seconds=alone.seconds).slice(problem).cost_s,
        "lower_bound_s": max(started.lower_bound_s, alone.lower_bound_s),
        "took_s": started_s,
        "alone_took_s": alone.seconds,
    }


def _compiled(gradient: Gradient, problem: SlicingProblem) -> Slicing:
    """The second answer."""
    gradient.slice(problem)
    return gradient.slice(problem)


def _better(rows: Sequence[dict[str, Any]]) -> Figure:
    """Where the two plans' steps differ: from random starts alone; with the DP's plan among them it is never worse."""
    better, alone = _below(rows, "gradient_s", "dp_s"), _below(rows, "gradient_alone_s", "dp_s")
    worse = _below(rows, "dp_s", "gradient_alone_s")
    said = f"without it among the starts better on {alone} of {alone + worse}, "
    said += f"{_less(rows, 'gradient_alone_s', 'dp_s')}; with it better on {better}, "
    said += _less(rows, "gradient_s", "dp_s")
    off = sum(abs(row["dp_said_s"] / row["dp_s"] - 1) > DIFFERENT for row in rows)
    on = f"{len(rows)} with transfers, {off} of which aren't what the formula says"
    return Figure("gradient", on, "better than the DP's plan on half of where they differ", said, alone >= worse)


def _never_worse(rows: Sequence[dict[str, Any]]) -> Figure:
    worse, alone = _below(rows, "dp_s", "gradient_s"), _below(rows, "dp_s", "gradient_alone_s")
    said = f"worse on {worse}; without the DP's plan worse on {alone}"
    return Figure("gradient", f"all {len(rows)}", "never worse than the DP's plan", said, not worse)


def _than_mcmc(rows: Sequence[dict[str, Any]]) -> Figure:
    """By the number of problems on which either is better, and by the mean."""
    won, lost = _below(rows, "gradient_s", "mcmc_s"), _below(rows, "mcmc_s", "gradient_s")
    won_alone = _below(rows, "gradient_alone_s", "mcmc_alone_s")
    lost_alone = _below(rows, "mcmc_alone_s", "gradient_alone_s")
    said = f"better on {won}, worse on {lost}, {_less(rows, 'gradient_s', 'mcmc_s')}; without the DP's plan better on "
    said += f"{won_alone}, worse on {lost_alone}, {_less(rows, 'gradient_alone_s', 'mcmc_alone_s')}"
    held = won > lost and _mean(rows, "gradient_s", "mcmc_s") < 1
    return Figure("gradient", f"all {len(rows)}", "better than mcmc at equal wall time", said, held)


def _below(rows: Sequence[dict[str, Any]], one: str, other: str) -> int:
    """On how many rows one is less than the other."""
    return sum(row[one] < row[other] * (1 - SAME) for row in rows)


def _mean(rows: Sequence[dict[str, Any]], one: str, other: str) -> float:
    return statistics.geometric_mean([row[one] / row[other] for row in rows]) if rows else 1.0


def _less(rows: Sequence[dict[str, Any]], one: str, other: str) -> str:
    return f"{100 * (1 - _mean(rows, one, other)):.2g} % less on the mean"


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
