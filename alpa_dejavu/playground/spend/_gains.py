"""A short trial on this machine: how many steps each way takes to the loss that plain training comes to."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.spend._learner import Learner
from alpa_dejavu.playground.spend._runs import WINDOW, Runs, steps_to
from alpa_dejavu.playground.spend._ways import Way
from alpa_dejavu.problem import checks

__all__ = ["USUAL", "Gain", "Measured", "Trial", "gains"]

Floats = NDArray[np.float64]
RATES = (0.001, 0.003, 0.01, 0.03)
"""Adam's, of which the best for plain training is taken; larger batches have theirs tuned anew."""
POWERS = (0.0, 0.5, 1.0)
"""Powers of how much larger a batch is, by which its rate may grow."""
TARGET_AT = 0.6
TUNING_SEED = 1000
"""Seeds from here on choose rates and the target; the others are judged."""
RACE = 0.25
"""The part of a training in which `parallel_initialize` races."""


@final
@dataclasses.dataclass(frozen=True)
class Trial:
    """How long the trial is.

    Attributes:
        seeds: how many trainings each way has.
        steps: steps of one training.
    """

    seeds: int = 5
    steps: int = 150

    def __post_init__(self) -> None:
        if not isinstance(self.seeds, int) or self.seeds < 2:
            raise ValueError(f"trial: seeds is {self.seeds!r}, but must be at least 2; one tells no interval")
        checks.count("trial", "steps", self.steps)
        if self.steps < 4 * WINDOW:
            raise ValueError(f"trial: steps is {self.steps}, but must be at least {4 * WINDOW}; take more")


USUAL = Trial()


@final
@dataclasses.dataclass(frozen=True)
class Gain:
    """The steps that a way saves, as the trial has measured them.

    Attributes:
        steps: steps one after another to the loss that plain training comes to, over those that plain training takes:
            a geometric mean over seeds with its 90 % interval.
        race: the part of them that is a race of starts; 0: none is.
        unreached: how many trainings didn't come to it; they count as if they took twice a training.
        why: why the way wasn't tried; empty: it was.
    """

    steps: Interval
    race: float = 0.0
    unreached: int = 0
    why: str = ""


@final
@dataclasses.dataclass(frozen=True)
class Measured:
    """The gains of all ways, and how they were measured.

    Attributes:
        gains: by way.
        target: the loss that is to be reached.
        rate: Adam's, of plain training.
        seconds: that the trial took.
    """

    gains: dict[Way, Gain]
    target: float
    rate: float
    seconds: float


def gains(
    learner: Learner, ways: Sequence[Way], trial: Trial = USUAL, on_way: Callable[[Way], None] = lambda way: None
) -> Measured:
    """Trains a learner in each way for a few steps, and returns in how many steps it comes to the same loss.

    Rates and the loss to be reached are chosen by other seeds than those that are judged. A step of a larger batch or
    of OptEx counts as one; a race of starts takes as many as the one that is chosen.

    Args:
        learner: what is trained.
        ways: the ways; plain training is measured whether it is among them or not.
        trial: how many seeds and steps.
        on_way: is called with each way before it is tried.
    """
    begun_s = time.perf_counter()
    runs = Runs(learner)
    rate, target = _tuned(runs, trial)
    seeds = range(trial.seeds)
    plain = steps_to(runs.batches(1, rate, seeds, trial.steps, target), target)
    found = {}
    for way in ways:
        on_way(way)
        try:
            reached = plain if way.kind == "plain" else steps_to(_losses(way, runs, rate, target, seeds, trial), target)
        except ValueError as error:
            found[way] = Gain(Interval(math.nan, math.nan, math.nan), why=str(error))
            continue
        found[way] = _gain(way, reached, plain, trial)
    return Measured(found, target, rate, time.perf_counter() - begun_s)


def _tuned(runs: Runs, trial: Trial) -> tuple[float, float]:
    """The rate by which plain training comes lowest, and the loss that it has at a part of its steps."""
    tuning = range(TUNING_SEED, TUNING_SEED + 3)
    tuned = {rate: runs.batches(1, rate, tuning, trial.steps) for rate in RATES}
    rate = min(tuned, key=lambda one: _at_end(tuned[one]))
    at = round(TARGET_AT * trial.steps)
    target = float(np.median(tuned[rate][:, at - WINDOW : at].mean(axis=1)))
    if not math.isfinite(target):
        raise ValueError(
            f"the trial's loss is {target} by Adam at a rate of {rate:g}, but must be a number; scale the data and the "
            "first weights, or ask for a stand-in"
        )
    return rate, target


def _losses(way: Way, runs: Runs, rate: float, target: float, seeds: Sequence[int], trial: Trial) -> Floats:
    """Losses of each seed's training, shape (seeds, steps)."""
    if way.kind == "starts":
        return np.stack([runs.race(way.times, rate, seed, trial.steps) for seed in seeds])
    if way.kind == "optex":
        return runs.side_by_side(way.times, rate, seeds, trial.steps, target)
    tuning = range(TUNING_SEED, TUNING_SEED + 2)
    rates = [rate * way.times**power for power in POWERS]
    taken = {one: steps_to(runs.batches(way.times, one, tuning, trial.steps, target), target) for one in rates}
    best = min(rates, key=lambda one: sum(steps or 2 * trial.steps for steps in taken[one]))
    return runs.batches(way.times, best, seeds, trial.steps, target)


def _gain(way: Way, reached: Sequence[int | None], plain: Sequence[int | None], trial: Trial) -> Gain:
    most = 2 * trial.steps
    ratios = [math.log((one or most) / (other or most)) for one, other in zip(reached, plain, strict=True)]
    steps = Interval.of(ratios).exp()
    taken = [one or most for one in reached]
    race = RACE * trial.steps / float(np.mean(taken)) if way.kind == "starts" else 0.0
    return Gain(steps, min(1.0, race), sum(one is None for one in reached))


def _at_end(losses: Floats) -> float:
    last = float(losses[:, -WINDOW:].mean())
    return last if math.isfinite(last) else math.inf
