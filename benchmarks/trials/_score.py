"""Figures of predictions beside measurements. Every one is a fraction: 0.08 is 8 %."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import rankdata

from trials._trial_set import Predicted

Array = NDArray[np.float64]


def figures(measured: Array, predicted: Predicted) -> dict[str, Any]:
    """How far seconds are off, and how often 90 % intervals hold."""
    error = predicted.mean / measured - 1
    inside = (measured >= predicted.lower) & (measured <= predicted.upper)
    return {
        "n": len(measured),
        "mape": float(np.abs(error).mean()),
        "median_ape": float(np.median(np.abs(error))),
        "bias": float(error.mean()),
        "coverage_90": float(inside.mean()),
        "width_90": float(np.median((predicted.upper - predicted.lower) / measured)),
    }


def memory_figures(measured: Array, predicted: Array) -> dict[str, Any]:
    """How far peak bytes are off in the rows where they were measured; nothing where none were."""
    known = np.isfinite(measured)
    error = (predicted / measured - 1)[known]
    return {"memory_mape": float(np.abs(error).mean()), "memory_bias": float(error.mean())} if known.any() else {}


def ranking_figures(measured: Array, mean: Array, jobs: pd.Series) -> dict[str, Any]:
    """How well plans are ranked within their job, averaged over the jobs that have at least two plans.

    `regret` is the measured time of the plan that is predicted to be the fastest, over the best one, minus 1.
    """
    places = jobs.reset_index(drop=True).groupby(jobs.to_numpy()).groups.values()
    several = [index for index in places if len(index) > 1]
    orders = [order for index in several if (order := spearman(measured[index], mean[index])) is not None]
    regrets = [measured[index][np.argmin(mean[index])] / measured[index].min() - 1 for index in several]
    return {"spearman": _mean(orders), "regret": _mean(regrets), "jobs": len(several)}


def spearman(measured: Array, mean: Array) -> float | None:
    """The correlation of ranks, ties shared; None where one of the two has one value only."""
    ranks = rankdata(measured), rankdata(mean)
    if min(np.ptp(each) for each in ranks) == 0:
        return None
    return float(np.corrcoef(*ranks)[0, 1])


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None
