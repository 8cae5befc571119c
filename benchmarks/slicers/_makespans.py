"""`gradient` on simulated steps: problems whose transfers go over unlike links, next to the DP's plan and to `mcmc`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from tqdm import tqdm

from alpa_dejavu.problem import Slicing, SlicingProblem
from alpa_dejavu.slicing import Gradient, Mcmc, slicer
from harness import Figure
from slicers._figure import Part, Scale
from slicers._transfers import by_the_formula, with_transfers

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
