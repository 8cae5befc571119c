"""What rows say of a way: steps to the target, next to those of one start, with confidence intervals."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np
from scipy.stats import spearmanr

from alpa_dejavu._util.interval import Interval
from races._ways import LONGER, STARTS, search_of

CONFIDENCE = 0.95
UNREACHED = LONGER["full"]
"""Who doesn't reach the target in its steps counts as if in so many times as many."""
SMALL = 1.25
"""What budget="small" may cost, in trainings of one start."""
Rows = Mapping[str, Sequence[Mapping[str, Any]]]


@final
@dataclasses.dataclass(frozen=True)
class Summary:
    """Of one way, over seeds.

    Attributes:
        name: of the way.
        steps: per worker, to the target.
        ratio: of these to the ones of one start with the same seed and batches; its mean is a geometric one.
        compute: to the target, as a ratio to that of one start.
        whole: the largest compute of a whole run, in trainings of one start.
        with_idle: that with the steps of idle lanes, which one program for all starts takes besides.
        accuracy: on the test; of a search, that of the start with the least loss after all steps.
        unreached: so many seeds didn't reach the target.
        seconds: of a run in one process, compiling included; the median.
    """

    name: str
    steps: Interval
    ratio: Interval
    compute: Interval
    whole: float
    with_idle: float
    accuracy: Interval
    unreached: int
    seconds: float


@final
@dataclasses.dataclass(frozen=True)
class InSeconds:
    """Of pairs of runs with Ray workers: a race next to one start; ratios with geometric means.

    Attributes:
        steps: to the target.
        seconds: to the target, from the call on.
        training: the same from the first step on.
        step: seconds of a step of the worker that is ahead beside the other one, next to those of a worker alone.
        apart: the ratio of training over that in steps: 1 where seconds are as steps say.
    """

    steps: Interval
    seconds: Interval
    training: Interval
    step: Interval
    apart: Interval

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> InSeconds:
        most = UNREACHED * found["settings"]["steps"]
        steps, seconds, training, step = [], [], [], []
        for pair in found["pairs"]:
            race, alone = pair["race"], pair["alone"]
            steps.append(math.log((race["steps"] or most) / (alone["steps"] or most)))
            begun = [run["begun_s"] for run in (race, alone)]
            trained = [(run["to_target_s"] or run["begun_s"] + UNREACHED * (run["whole_s"] - run["begun_s"]))
                       - run["begun_s"] for run in (race, alone)]  # fmt: skip
            seconds.append(math.log((begun[0] + trained[0]) / (begun[1] + trained[1])))
            training.append(math.log(trained[0] / trained[1]))
            step.append(math.log(race["step_s"] / alone["step_s"]))
        apart = [one - other for one, other in zip(training, steps, strict=True)]
        return cls(*(_interval(values).exp() for values in (steps, seconds, training, step, apart)))


def _interval(values: Sequence[float]) -> Interval:
    return Interval.of(values, CONFIDENCE)


def summaries(rows: Rows, steps: int) -> list[Summary]:
    """Of all ways of a network that is trained for so many steps."""
    alone = _alone(rows, steps)
    return [_summary(name, rows[name], alone, steps) for name in rows]


def _summary(name: str, rows: Sequence[Mapping[str, Any]], alone: Mapping[int, float], steps: int) -> Summary:
    """All ratios are to one start with the same seed."""
    taken = {row["seed"]: _steps(row, steps) for row in rows}
    computes = [math.log((row["compute"] or UNREACHED * row["all_steps"]) / alone[row["seed"]]) for row in rows]
    return Summary(
        name,
        _interval(list(taken.values())),
        _interval([math.log(one / alone[seed]) for seed, one in taken.items()]).exp(),
        _interval(computes).exp(),
        max(row["all_steps"] for row in rows) / steps,
        max(row["all_steps"] + row["idle_steps"] for row in rows) / steps,
        _interval([row["accuracy"] for row in rows if row["accuracy"] is not None]),
        sum(row["reached"] is None for row in rows),
        statistics.median(row["seconds"] for row in rows),
    )


def is_whole(rows: Rows) -> bool:
    """Whether searches were measured too, not the contests alone."""
    return all(search_of(init) in rows for init in STARTS)


def _steps(row: Mapping[str, Any], steps: int) -> float:
    return UNREACHED * steps if row["reached"] is None else float(row["reached"])


def _alone(rows: Rows, steps: int) -> dict[int, float]:
    """Of one start, by seed; it may take its time."""
    return {row["seed"]: _steps(row, steps) for row in rows[f"one start, {UNREACHED:g}x as long"]}


def of_any(rows: Rows, init: str, steps: int) -> Interval:
    """What any one of the starts of a kind takes next to one start of the network's own: scales without a race."""
    alone = _alone(rows, steps)
    logs = [
        float(np.mean([math.log((each or UNREACHED * steps) / alone[row["seed"]]) for each in row["each"]]))
        for row in rows[search_of(init)]
    ]
    return _interval(logs).exp()


def foresight(rows: Rows, init: str, steps: int) -> float:
    """Spearman's correlation of starts' losses after the first steps and the steps they take to the target.

    The mean over seeds; NaN if nothing differs.
    """
    found = []
    for row in rows[search_of(init)]:
        known = [(early, each or UNREACHED * steps) for early, each in zip(row["early"], row["each"], strict=True)
                 if early is not None]  # fmt: skip
        if len({early for early, _ in known}) > 1 and len({each for _, each in known}) > 1:
            found.append(float(spearmanr(*zip(*known, strict=True)).statistic))
    return float(np.mean(found)) if found else math.nan


def spread(rows: Rows) -> float:
    """The standard deviation of the steps that a network's own starts take to the target, as a part of their mean."""
    each = [steps for row in rows[search_of("model")] for steps in row["each"] if steps is not None]
    return float(np.std(each) / np.mean(each)) if each else math.nan
