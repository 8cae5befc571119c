"""Decides what is worth measuring: a stage, or whole plans, after which on average a better plan would be chosen."""

from __future__ import annotations

import itertools

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.ties import first_least

__all__ = ["LEAST_GAIN", "gain_s", "most_useful", "most_worthwhile"]

LEAST_GAIN = 0.005
"""The share of a step that a measurement must promise to save, or it isn't made."""


def gain_s(steps_s: FloatArray, *log_errors: FloatArray) -> float:
    """Returns how many seconds a training step gets shorter on average if the plan is chosen after measuring one stage,
    or several.

    The expected step of each candidate plan is regressed on the stages' prediction errors. The regression is made on
    one half of the draws and its choices of plans are judged on the other, in turn, so that what is chosen by chance
    gains nothing; so the result may be negative.

    Args:
        steps_s: seconds of a step of each candidate plan in K joint draws of prediction errors, shape (K, candidates).
        log_errors: each stage's error in the same draws: the logarithm of its seconds, or of the factor by which they
            are off, shape (K,).

    References:
        Strong, Oakley and Brennan, Estimating Multiparameter Partial Expected Value of Perfect Information from a
        Probabilistic Sensitivity Analysis Sample, Medical Decision Making 34(3), 2014.

    >>> steps = np.array([[1.0, 2.0], [3.0, 2.0]] * 50)
    >>> gain_s(steps, np.log([0.5, 2.0] * 50))
    0.5
    """
    half = len(steps_s) // 2
    if half < 2 or all(one.std() == 0 for one in log_errors):
        return 0.0
    squares = [one * other for one, other in itertools.combinations_with_replacement(log_errors, 2)]
    terms = np.stack([np.ones_like(log_errors[0]), *log_errors, *squares], axis=1)
    gains = []
    for known, judged in ((slice(0, half), slice(half, 2 * half)), (slice(half, 2 * half), slice(0, half))):
        coefficients = np.linalg.lstsq(terms[known], steps_s[known], rcond=None)[0]
        picked = first_least(terms[judged] @ coefficients)
        always = first_least(steps_s[known].mean(axis=0))
        gains.append(steps_s[judged, always].mean() - steps_s[judged][np.arange(len(picked)), picked].mean())
    return float(np.mean(gains))


def most_worthwhile(
    steps_s: FloatArray, log_errors: FloatArray, takes_s: FloatArray, budget_s: float, least: float = LEAST_GAIN
) -> int | None:
    """Returns the index of the stage whose measurement gains most per second of measuring; None if none is worth it.

    The gain is how much shorter the step of the plan that is chosen afterwards is on average. Where no single stage is
    worth it, two may be: what one takes against another tells what an error that both share hides.

    Args:
        steps_s: seconds of a step of each candidate plan in K joint draws of prediction errors, shape (K, candidates).
        log_errors: the logarithms of the stages' seconds in the same draws, shape (K, stages).
        takes_s: the seconds that measuring each stage takes, shape (stages,).
        budget_s: the seconds left for measuring; stages whose measurement takes longer aren't chosen.
        least: the least gain that is worth a measurement, as a share of the best candidate's step; it may be negative,
            as computed gains are where draws show none.
    """
    if not log_errors.shape[1]:
        return None
    gains = np.array([gain_s(steps_s, log_error) for log_error in log_errors.T])
    wanted = least * steps_s.mean(axis=0).min()
    worth = np.where((gains >= wanted) & (takes_s <= budget_s), gains / np.maximum(takes_s, 1e-9), -np.inf)
    best = int(first_least(-worth))
    if worth[best] > 0:
        return best
    pairs = [(a, b) for a, b in itertools.combinations(range(len(gains)), 2) if takes_s[a] + takes_s[b] <= budget_s]
    if pairs:
        each = np.array([gain_s(steps_s, log_errors[:, a], log_errors[:, b]) for a, b in pairs])
        takes = np.array([takes_s[a] + takes_s[b] for a, b in pairs])
        chosen = int(first_least(-np.where(each >= wanted, each / np.maximum(takes, 1e-9), -np.inf)))
        if each[chosen] >= wanted:
            a, b = pairs[chosen]
            return a if gains[a] >= gains[b] else b
    return best if worth[best] > -np.inf else None


def most_useful(steps_s: FloatArray, most: int, least: float = LEAST_GAIN) -> list[int]:
    """Returns the plans to measure beside the first one: each shortens the fastest one's step most on average.

    Args:
        steps_s: of the candidate plans in joint draws, shape (K, candidates).
        most: how many are measured, the first one among them.
        least: the share of a step that a plan must shorten it by, or it isn't measured.

    >>> most_useful(np.array([[2.0, 1.9, 1.0, 3.0], [2.0, 1.9, 3.0, 3.0]]), most=3)
    [2, 1]
    """
    found: list[int] = []
    fastest_s = steps_s[:, 0]
    while len(found) < most - 1:
        gains = fastest_s.mean() - np.minimum(fastest_s[:, None], steps_s).mean(axis=0)
        best = int(first_least(-gains))
        if gains[best] < least * fastest_s.mean():
            break
        found.append(best)
        fastest_s = np.minimum(fastest_s, steps_s[:, best])
    return found
