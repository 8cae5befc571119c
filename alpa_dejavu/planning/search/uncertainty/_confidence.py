"""The probability that the chosen plan is nearly the best, the step to expect of it, and what is worth measuring."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu._util.ties import first_least
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search.uncertainty._errors import Errors, Factors
from alpa_dejavu.planning.search.uncertainty._resolved import Resolver
from alpa_dejavu.planning.search.uncertainty._spreads import CLASSES
from alpa_dejavu.planning.search.uncertainty._steps import DRAWS, interval, meet_plan, step_draws
from alpa_dejavu.problem import Confidence

NEARLY = 1.05
"""A plan of so many times the best one's step is as good as the best."""
LEAST_GAIN = 0.005
"""The share of a step that a measurement must promise to save, or it isn't made."""


def confidence(candidates: Sequence[Candidate], count: int = DRAWS, errors: Errors | None = None) -> Confidence:
    """Returns how probable it is that the first candidate's step is within 5 % of the best one's, and what step to
    expect.

    The costs of all are drawn jointly, `count` times, by `errors`, or as the cost models tell it. The step is drawn for
    the first plan by itself, so that it is the same whatever the plan is compared with.
    """
    return confidence_and_expected(candidates, count, errors)[0]


def confidence_and_expected(
    candidates: Sequence[Candidate], count: int = DRAWS, errors: Errors | None = None
) -> tuple[Confidence, list[float]]:
    """Returns the confidence in the first candidate, as `confidence` does, and the step to expect of each of them."""
    alone = numbered_errors(candidates[:1], errors)
    factors = alone.drawn(count)
    own_s = step_draws(candidates[:1], alone, factors)[:, 0]
    joint_s = drawn_steps(candidates, count, errors) if len(candidates) > 1 else own_s[:, None]
    slicing, missed = candidates[0].slicing, 1.0
    if slicing.lower_bound_s > 0 and math.isfinite(slicing.cost_s) and slicing.cost_s > 0:
        missed = min(slicing.lower_bound_s / slicing.cost_s, 1.0)
    source = "; by ".join(filter(None, (spread_shares(own_s, factors), alone.resolver.source)))
    sure = confidence_of_draws(joint_s, own_s, source, missed, _compared(candidates))
    return sure, [sure.expected_step_s, *np.exp(np.log(joint_s[:, 1:]).mean(axis=0)).tolist()]


def expected_steps(candidates: Sequence[Candidate], errors: Errors | None = None) -> list[float]:
    """Returns the seconds to expect of candidates' steps, by joint draws."""
    steps: list[float] = np.exp(np.log(drawn_steps(candidates, errors=errors)).mean(axis=0)).tolist()
    return steps


def drawn_steps(
    candidates: Sequence[Candidate],
    count: int = DRAWS,
    errors: Errors | None = None,
    seed: int = 0,
    across: int | None = None,
) -> FloatArray:
    """Returns the seconds of candidates' steps in joint draws, (count, candidates), on clusters of the same devices;
    draws of the same `across` have in common what errs alike on other devices.
    """
    errors = numbered_errors(candidates, errors)
    return step_draws(candidates, errors, errors.drawn(count, seed, across))


def numbered_errors(candidates: Sequence[Candidate], errors: Errors | None = None) -> Errors:
    """Returns the errors' distribution, whose resolver has met the candidates; if none is given, the cost models'."""
    resolver = Resolver() if errors is None else errors.resolver
    for candidate in candidates:
        meet_plan(candidate, resolver)
    return errors or Errors.unmeasured(resolver)


def _compared(candidates: Sequence[Candidate]) -> str:
    """Returns the shapes of the candidates in a few words."""
    numbers = {
        "layer": [plan.model.num_layers for plan in candidates],
        "micro-batch": [plan.run.num_micro_batches for plan in candidates],
        "stage": [len(plan.stages) for plan in candidates],
        "host": [len({host for hosts in plan.placed for host in hosts}) for plan in candidates],
    }
    ranges = []
    for what, counts in numbers.items():
        low, high = min(counts), max(counts)
        plural = f"{what}es" if what.endswith("ch") else f"{what}s"
        ranges.append(f"{low} to {high} {plural}" if low < high else f"{low} {what if low == 1 else plural}")
    return ", ".join(ranges)


def spread_shares(steps_s: FloatArray, factors: Factors) -> str:
    """Returns in words which errors make most of the spread of a step, in shares of its logarithm's variance; "" where
    it has none. `steps_s` are the step's seconds in the draws of `factors`, shape (K,).

    The logarithm of the step is regressed on those of the classes' factors; what is left over is of single layers.
    """
    steps, errors = (values - values.mean(axis=0) for values in (np.log(steps_s), np.log(factors.common)))
    total = float(np.square(steps).sum())
    if total == 0 or not errors.any():
        return ""
    of_classes = np.square(np.linalg.lstsq(errors, steps, rcond=None)[0]) * np.square(errors).sum(axis=0) / total
    shares: dict[str, float] = {}
    for name, share in zip(CLASSES, of_classes.tolist(), strict=True):
        title = "collectives" if name.endswith(_BETWEEN) else _ERRORS.get(name, name)
        shares[title] = shares.get(title, 0.0) + share
    shares["single layers"] = max(1.0 - sum(shares.values()), 0.0)
    whole = sum(shares.values())  # above 1 where the drawn factors of classes happen to go against each other
    parts = ((name, share / whole) for name, share in shares.items())
    most = sorted((pair for pair in parts if pair[1] >= _TOLD), key=lambda pair: -pair[1])
    return ", ".join(f"{100 * share:.0f} % from {name}" for name, share in most)


_TOLD = 0.05
"""Errors are named that make at least this share of the variance of a step's logarithm."""
_BETWEEN = ("within hosts", "between hosts")
_ERRORS = {
    "doublings": "dividing stages among devices (assumed)",
    "runtime": "the framework's own time",
}


def confidence_of_draws(
    steps_s: FloatArray, own_s: FloatArray, source: str, missed: float = 1.0, compared: str = ""
) -> Confidence:
    """Returns how probable it is that the chosen plan's step is within 5 % of the best one's, and what step to expect.

    `steps_s` has the steps of the candidates, the chosen plan first, in K joint draws, shape (K, candidates); `own_s`
    those of the chosen plan, drawn by itself, shape (K,). A plan that the search has missed may take `missed` of the
    chosen step at least: all shares from there to 1 are reckoned with evenly.
    """
    best_s = np.minimum(steps_s.min(axis=1), steps_s[:, 0] * np.linspace(missed, 1.0, len(steps_s)))
    return Confidence(
        probability=float((steps_s[:, 0] <= NEARLY * best_s).mean()),
        expected_step_s=float(np.exp(np.log(own_s).mean())),
        interval_s=interval(own_s),
        draws=len(own_s),
        candidates=steps_s.shape[1],
        spread_from=source,
        compared=compared,
        deviation_s=float(own_s.std()),
    )


def gain_s(steps_s: FloatArray, *log_errors: FloatArray) -> float:
    """Returns how many seconds a training step gets shorter on average if the plan is chosen after measuring one stage,
    or several: of K joint draws of steps, shape (K, candidates), and of the logarithms of each stage's error, shape
    (K,).

    The expected step of each plan is regressed on the stages' errors on one half of the draws, and the choices are
    judged on the other, in turn, so that what is chosen by chance gains nothing; the result may be negative.

    References:
        Strong, Oakley and Brennan, Estimating Multiparameter Partial Expected Value of Perfect Information from a
        Probabilistic Sensitivity Analysis Sample, Medical Decision Making 34(3), 2014.

    >>> steps = np.array([[1.0, 2.0], [3.0, 2.0]] * 50)
    >>> gain_s(steps, np.log([0.5, 2.0] * 50))
    0.5
    """
    half = len(steps_s) // 2
    if half < 2 or all(log_error.std() == 0 for log_error in log_errors):
        return 0.0
    squares = [a * b for a, b in itertools.combinations_with_replacement(log_errors, 2)]
    terms = np.stack([np.ones_like(log_errors[0]), *log_errors, *squares], axis=1)
    gains = []
    for fitted, judged in ((slice(0, half), slice(half, 2 * half)), (slice(half, 2 * half), slice(0, half))):
        coefficients = np.linalg.lstsq(terms[fitted], steps_s[fitted], rcond=None)[0]
        picked = first_least(terms[judged] @ coefficients)
        always = first_least(steps_s[fitted].mean(axis=0))
        gains.append(steps_s[judged, always].mean() - steps_s[judged][np.arange(len(picked)), picked].mean())
    return float(np.mean(gains))


def most_worthwhile(
    steps_s: FloatArray, log_errors: FloatArray, takes_s: FloatArray, budget_s: float, least: float = LEAST_GAIN
) -> int | None:
    """Returns the index of the stage whose measurement gains most per second of measuring; None if none is worth it.
    Two stages may be worth it where none is alone.

    `steps_s` has shape (K, candidates); `log_errors`, the logarithms of stages' seconds in the same draws, (K, stages);
    `takes_s`, what measuring each takes, (stages,). Gains are at least `least` of the best step, which may be negative.
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
        of_pairs = np.array([gain_s(steps_s, log_errors[:, a], log_errors[:, b]) for a, b in pairs])
        takes = np.array([takes_s[a] + takes_s[b] for a, b in pairs])
        chosen = int(first_least(-np.where(of_pairs >= wanted, of_pairs / np.maximum(takes, 1e-9), -np.inf)))
        if of_pairs[chosen] >= wanted:
            a, b = pairs[chosen]
            return a if gains[a] >= gains[b] else b
    return best if worth[best] > -np.inf else None


def most_useful(steps_s: FloatArray, most: int, least: float = LEAST_GAIN) -> list[int]:
    """Returns the plans to measure beside the first one, `most` with it: each shortens the fastest measured step most,
    by the share `least` at least. The steps are in joint draws, shape (K, candidates).

    >>> most_useful(np.array([[2.0, 1.9, 1.0, 3.0], [2.0, 1.9, 3.0, 3.0]]), most=3)
    [2, 1]
    """
    chosen: list[int] = []
    fastest_s = steps_s[:, 0]
    while len(chosen) < most - 1:
        gains = fastest_s.mean() - np.minimum(fastest_s[:, None], steps_s).mean(axis=0)
        best = int(first_least(-gains))
        if gains[best] < least * fastest_s.mean():
            break
        chosen.append(best)
        fastest_s = np.minimum(fastest_s, steps_s[:, best])
    return chosen
