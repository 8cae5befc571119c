"""Figures of predictions beside measurements. Every one is a fraction: 0.08 is 8 %."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binom, rankdata

from trials._trial_set import Predicted

Array = NDArray[np.float64]

ALPHA = 0.1
HALVES, SEED = 500, 0
_BAND = 0.95


def figures(measured: Array, predicted: Predicted, groups: pd.Series) -> dict[str, Any]:
    """Errors and intervals of all rows, and the MAPE of each group."""
    error = predicted.mean / measured - 1
    size = np.abs(error)
    inside = (measured >= predicted.lower) & (measured <= predicted.upper)
    by_group = pd.Series(size).groupby(groups.to_numpy()).mean()
    return {
        "n": len(measured),
        "groups": int(groups.nunique()),
        "mape": float(size.mean()),
        "median_ape": float(np.median(size)),
        "p90_ape": float(np.quantile(size, 0.9)),
        "bias": float(error.mean()),
        "coverage_90": float(inside.mean()),
        "width_90": float(np.median((predicted.upper - predicted.lower) / measured)),
        "interval_score": float(interval_scores(measured, predicted).mean()),
        "by_group": {str(name): float(value) for name, value in by_group.items()},
    }


def interval_scores(measured: Array, predicted: Predicted) -> Array:
    """Of each row, over what was measured: the interval's width, and 2 / 0.1 times what it misses by.

    References:
        Gneiting and Raftery, Strictly Proper Scoring Rules, Prediction, and Estimation, JASA 102(477), 2007.
    """
    below = np.maximum(predicted.lower - measured, 0)
    above = np.maximum(measured - predicted.upper, 0)
    return (predicted.upper - predicted.lower + 2 / ALPHA * (below + above)) / measured


def interval_checks(ours: Mapping[str, Any], linear: Mapping[str, Any]) -> dict[str, Any]:
    """Whether a set's intervals hold as often as they say, and are no wider than those of the linear baseline.

    Rows of a group are right or wrong together, so the share is compared with what chance gives so many groups.

    Args:
        ours: the figures of our model, by `figures`.
        linear: those of the baseline.
    """
    groups = ours["groups"]
    low, high = (float(binom.ppf(end, groups, 1 - ALPHA)) / groups for end in ((1 - _BAND) / 2, (1 + _BAND) / 2))
    return {
        "coverage_band": [low, high],
        "coverage_in_band": bool(low <= ours["coverage_90"] <= high),
        "not_wider_than_linear": bool(ours["width_90"] <= linear["width_90"]),
    }


def mean_interval(values: Array, groups: pd.Series) -> list[float]:
    """The ends of a 95 % interval of a mean, from draws of whole groups with replacement."""
    parts = [values[index] for index in groups.reset_index(drop=True).groupby(groups.to_numpy()).groups.values()]
    rng = np.random.default_rng(SEED)
    drawn = rng.integers(0, len(parts), (HALVES, len(parts)))
    means = [float(np.concatenate([parts[n] for n in chosen]).mean()) for chosen in drawn]
    return [float(end) for end in np.quantile(means, ((1 - _BAND) / 2, (1 + _BAND) / 2))]


def memory_figures(measured: Array, predicted: Predicted) -> dict[str, Any]:
    """Errors and intervals of peak bytes, of the rows where they were measured; nothing where none were."""
    known = np.isfinite(measured)
    if not known.any():
        return {}
    inside = (measured >= predicted.lower) & (measured <= predicted.upper)
    return {
        "memory_mape": float(np.abs(predicted.mean / measured - 1)[known].mean()),
        "memory_coverage_90": float(inside[known].mean()),
    }


def ranking_figures(measured: Array, mean: Array, jobs: pd.Series) -> dict[str, Any]:
    """How well plans are ranked within their job, averaged over the jobs that have at least two plans.

    `subset_regret` is the mean, over 500 random halves of the plans, of the measured time of the plan ranked first over
    the best one in that half, minus 1; `top1_regret` the same among all plans.
    """
    orders, halves, tops = [], [], []
    for _, index in jobs.reset_index(drop=True).groupby(jobs.to_numpy()).groups.items():
        truth, guess = measured[index], mean[index]
        if len(index) < 2:
            continue
        order = spearman(truth, guess)
        if order is not None:
            orders.append(order)
        halves.append(subset_regret(truth, guess))
        tops.append(_regret(truth, guess))
    return {
        "spearman": _mean(orders),
        "subset_regret": _mean(halves),
        "top1_regret": _mean(tops),
        "jobs": len(tops),
    }


def spearman(measured: Array, mean: Array) -> float | None:
    """The correlation of ranks, ties shared; None where one of the two has one value only."""
    ranks = rankdata(measured), rankdata(mean)
    if min(np.ptp(each) for each in ranks) == 0:
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def subset_regret(measured: Array, mean: Array) -> float:
    """The mean regret over random halves of one job's plans."""
    rng = np.random.default_rng(SEED)
    half = max(len(measured) // 2, 1)
    drawn = [rng.permutation(len(measured))[:half] for _ in range(HALVES)]
    return float(np.mean([_regret(measured[each], mean[each]) for each in drawn]))


def _regret(measured: Array, mean: Array) -> float:
    return float(measured[np.argmin(mean)] / measured.min() - 1)


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
