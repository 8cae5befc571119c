"""A short trial on this machine: how many steps each way takes to the loss that plain training comes to."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import final

from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.spend._costs import Way
from alpa_dejavu.playground.spend._trainings import WINDOW, Trainings, means, steps_to
from alpa_dejavu.playground.spend._trial_model import TrialModel
from alpa_dejavu.problem import checks

RATES = (0.001, 0.003, 0.01, 0.03)
"""Adam's, of which the best for plain training is taken; larger batches have theirs tuned anew."""
TUNING_SEED = 1000
"""Seeds from here on choose rates and the target; the others are judged."""
RACE = 0.25
"""The part of a training in which `parallel_initialize` races."""


@final
@dataclasses.dataclass(frozen=True)
class Trial:
    """How many trainings each way has, and the most steps of one training."""

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
    """

    steps: Interval
    race: float = 0.0
    unreached: int = 0
    why: str = ""


@final
@dataclasses.dataclass(frozen=True)
class MeasuredGains:
    """The gains by way, the loss that is to be reached, Adam's rate of plain training, and the trial's seconds."""

    gains: dict[Way, Gain]
    target: float
    rate: float
    seconds: float


def gains(
    model: TrialModel, ways: Sequence[Way], trial: Trial = USUAL, on_way: Callable[[Way], None] = lambda way: None
) -> MeasuredGains:
    """Trains a model in each way for a few steps, and returns in how many steps it comes to the same loss.

    Rates and the loss to be reached are chosen by other seeds than those that are judged. Trainings end at that loss. A
    step of a larger batch or of OptEx counts as one; a race of starts takes as many as the one that is chosen. Plain
    training is measured whether it is among the ways or not. `on_way` is called with each way before it is tried.
    """
    begun_s = time.perf_counter()
    runs = Trainings(model)
    rate, target = _tuned(runs, trial)
    plain = [steps_to(runs.batches(1, rate, seed), target, trial.steps) for seed in range(trial.seeds)]
    gain_of = {}
    for way in ways:
        on_way(way)
        try:
            reached = plain if way.kind == "plain" else _steps_to_target(way, runs, rate, target, trial)
        except ValueError as error:
            gain_of[way] = Gain(Interval(math.nan, math.nan, math.nan), why=str(error))
            continue
        gain_of[way] = _gain(way, reached, plain, trial)
    return MeasuredGains(gain_of, target, rate, time.perf_counter() - begun_s)


def _tuned(runs: Trainings, trial: Trial) -> tuple[float, float]:
    """The rate by which plain training comes lowest in a part of its steps, and the loss that it has there."""
    at = round(0.6 * trial.steps)
    lowest = {}
    for rate in RATES:
        trainings = [itertools.islice(runs.batches(1, rate, TUNING_SEED + n), at - WINDOW, at) for n in range(3)]
        lowest[rate] = statistics.median(statistics.fmean(losses) for losses in trainings)
    rate, target = min(lowest.items(), key=lambda pair: pair[1] if math.isfinite(pair[1]) else math.inf)
    if not math.isfinite(target):
        raise ValueError(
            f"the trial's loss is {target} by Adam at a rate of {rate:g}, but must be a number; scale the data and the "
            "first weights, or ask for a stand-in"
        )
    return rate, target


def _steps_to_target(way: Way, runs: Trainings, rate: float, target: float, trial: Trial) -> list[int | None]:
    """After how many steps each seed's training comes to the target."""
    if way.kind == "batch":
        rate = _larger_rate(way.times, runs, rate, target, trial)
    training: Callable[[int], Iterator[float]] = {
        "batch": lambda seed: runs.batches(way.times, rate, seed),
        "starts": lambda seed: runs.race(way.times, rate, seed, int(RACE * trial.steps)),
        "optex": lambda seed: runs.side_by_side(way.times, rate, seed),
    }[way.kind]
    return [steps_to(training(seed), target, trial.steps) for seed in range(trial.seeds)]


def _larger_rate(times: int, runs: Trainings, rate: float, target: float, trial: Trial) -> float:
    """The rate by which a larger batch is first at the target, by the mean of two seeds; all train until one is."""
    rates = [rate * times**power for power in (0.0, 0.5, 1.0)]  # powers by which it may grow with the batch
    pairs = [[means(runs.batches(times, tried, TUNING_SEED + n)) for n in range(2)] for tried in rates]
    trainings = [map(statistics.fmean, zip(*pair, strict=True)) for pair in pairs]
    for losses in itertools.islice(zip(*trainings, strict=True), trial.steps - WINDOW + 1):
        if any(loss <= target for loss in losses):
            break
    return min(zip(losses, rates, strict=True), key=lambda pair: pair[0] if math.isfinite(pair[0]) else math.inf)[1]


def _gain(way: Way, reached: Sequence[int | None], plain: Sequence[int | None], trial: Trial) -> Gain:
    most = 2 * trial.steps
    steps_of_way, taken_by_plain = ([steps or most for steps in counts] for counts in (reached, plain))
    ratio = Interval.of([math.log(a / b) for a, b in zip(steps_of_way, taken_by_plain, strict=True)]).exp()
    race = RACE * trial.steps / statistics.fmean(steps_of_way) if way.kind == "starts" else 0.0
    return Gain(ratio, min(1.0, race), sum(steps is None for steps in reached))
