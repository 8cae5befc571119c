"""The probability that the chosen plan is nearly the best, and the step to expect of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.search._candidate import Candidate
from alpa_dejavu.planning.search.uncertainty._decide import most_useful
from alpa_dejavu.planning.search.uncertainty._errors import Errors
from alpa_dejavu.planning.search.uncertainty._resolved import Resolver
from alpa_dejavu.planning.search.uncertainty._steps import meet_plan, step_draws
from alpa_dejavu.problem import Confidence, Slicing

__all__ = ["NEARLY", "confidence", "confidence_of_draws", "drawn_steps", "numbered_errors", "worth_trying"]

NEARLY = 1.05
"""A plan of so many times the best one's step is as good as the best."""
_DRAWS = 200
_ENDS = (0.05, 0.95)


def confidence(
    candidates: Sequence[Candidate],
    count: int = _DRAWS,
    errors: Errors | None = None,
    resolver: Resolver | None = None,
) -> Confidence:
    """Returns how probable it is that the step of the first of some candidate plans is within 5 % of the best one's,
    and what step to expect of it.

    The costs of all candidates are drawn jointly at random, by how far off predictions may be. The step is drawn for
    the first plan by itself, so that it is the same whatever the plan is compared with.

    Args:
        candidates: the chosen plan first.
        count: the number of draws.
        errors: the distribution of prediction errors; None: as the cost models tell it, before any measurement.
        resolver: the object that has numbered the errors in `errors`; None: a new one.
    """
    resolver = resolver or Resolver()
    alone = resolver if errors is not None else Resolver()
    own_s = drawn_steps(candidates[:1], count, errors, alone)[:, 0]
    joint_s = drawn_steps(candidates, count, errors, resolver) if len(candidates) > 1 else own_s[:, None]
    compared = _compared(candidates)
    return confidence_of_draws(joint_s, own_s, alone.source, _missed(candidates[0].slicing), compared)


def worth_trying(
    candidates: Sequence[Candidate], most: int, errors: Errors | None = None, resolver: Resolver | None = None
) -> list[int]:
    """Returns the indices of the plans that it is worth to try on the devices beside the first of some candidate plans.

    Each next one is the plan that, tried as well, would shorten the step of the fastest plan tried most on average.

    Args:
        candidates: the chosen one first.
        most: how many plans are tried, the chosen one among them.
        errors: what is known of the errors of predictions; None: what the models say.
        resolver: the one that `errors` are of; None: a new one.
    """
    return most_useful(drawn_steps(candidates, _DRAWS, errors, resolver), most)


def drawn_steps(
    candidates: Sequence[Candidate],
    count: int,
    errors: Errors | None = None,
    resolver: Resolver | None = None,
    seed: int = 0,
) -> FloatArray:
    """Returns the seconds of candidate plans' steps in joint draws of the errors of predictions, shape (count,
    candidates).

    Args:
        candidates: the plans, which may be on several clusters of the same devices.
        count: the number of draws.
        errors: the distribution of prediction errors; None: as the cost models tell it, before any measurement.
        resolver: the object that has numbered the errors in `errors`; None: a new one.
        seed: the seed of the draws.
    """
    errors, resolver = numbered_errors(candidates, errors, resolver)
    return step_draws(candidates, resolver, errors, errors.drawn(count, seed))


def numbered_errors(
    candidates: Sequence[Candidate], errors: Errors | None, resolver: Resolver | None
) -> tuple[Errors, Resolver]:
    """Returns the distribution of the errors of candidate plans' predictions, and the object that has numbered them;
    where they are None, as the cost models tell it, and a new one.
    """
    resolver = resolver or Resolver()
    for candidate in candidates:
        meet_plan(candidate, resolver)
    return errors or Errors.unmeasured(resolver), resolver


def _missed(slicing: Slicing) -> float:
    """Returns the least share of the chosen plan's step that a plan may take which the slicer didn't find."""
    known = slicing.lower_bound_s > 0 and math.isfinite(slicing.cost_s) and slicing.cost_s > 0
    return min(slicing.lower_bound_s / slicing.cost_s, 1.0) if known else 1.0


def _compared(candidates: Sequence[Candidate]) -> str:
    """Returns the shapes of the candidates in a few words."""
    numbers = {
        "layer": [one.model.num_layers for one in candidates],
        "micro-batch": [one.run.num_micro_batches for one in candidates],
        "stage": [len(one.stages) for one in candidates],
        "host": [len({host for hosts in one.placed for host in hosts}) for one in candidates],
    }
    return ", ".join(_range(each, what) for what, each in numbers.items())


def _range(numbers: Sequence[int], what: str) -> str:
    """Returns the least and the largest number, with their noun.

    >>> _range([1024, 512, 512], "micro-batch")
    '512 to 1024 micro-batches'
    """
    low, high = min(numbers), max(numbers)
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{low} to {high} {plural}" if low < high else f"{low} {what if low == 1 else plural}"


def confidence_of_draws(
    steps_s: FloatArray, own_s: FloatArray, source: str, missed: float = 1.0, compared: str = ""
) -> Confidence:
    """Returns how probable it is that the chosen plan's step is within 5 % of the best one's, and what step to expect
    of it.

    Args:
        steps_s: seconds of a step of each candidate plan in K joint random draws, shape (K, candidates), the chosen
            plan first.
        own_s: those of the chosen plan, drawn by itself, shape (K,).
        source: words that say where the spread of prediction errors is from.
        missed: the least that a plan which the search has missed may take, as a share of the chosen plan's step. All
            shares from there to 1 are reckoned with evenly, which lowers the probability.
        compared: the candidates' numbers of layers, micro-batches, stages and hosts in words.
    """
    best_s = np.minimum(steps_s.min(axis=1), steps_s[:, 0] * np.linspace(missed, 1.0, len(steps_s)))
    low, high = np.quantile(own_s, _ENDS)
    return Confidence(
        probability=float((steps_s[:, 0] <= NEARLY * best_s).mean()),
        expected_step_s=float(np.exp(np.log(own_s).mean())),
        interval_s=(float(low), float(high)),
        draws=len(own_s),
        candidates=steps_s.shape[1],
        spread_from=source,
        compared=compared,
        deviation_s=float(own_s.std()),
    )
