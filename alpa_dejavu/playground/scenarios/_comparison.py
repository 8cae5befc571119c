"""Exchanges compared by their runs: curves with intervals, when a target is reached, and the answer to a question."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.interval import Interval, column_intervals
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.scenarios._scenario import Runs, RunTarget, ScenarioRun

if TYPE_CHECKING:
    from jaxtyping import Float

AXES = {"seconds": "time_s", "steps": "steps", "bytes": "sent_bytes"}
"""The measures of curves and targets, and a history's field of each."""
_POINTS = 200


@final
@dataclasses.dataclass(frozen=True, eq=False)
class ComparedCurve:
    """A figure over an axis: its mean over seeds with its 90 % interval. It ends where the first of the seeds' runs
    does. Between two looks a run is taken to go in a line.
    """

    x: Float[np.ndarray, " X"]
    mean: Float[np.ndarray, " X"]
    low: Float[np.ndarray, " X"]
    high: Float[np.ndarray, " X"]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """One exchange over its seeds: its runs, and figures with intervals over them.

    Attributes:
        curves: by measure, "loss" or "accuracy", and axis, one of `AXES`; none where nothing was computed.
        to_target: by axis, the interval over those that reached it; empty if none did, or there is no target.
        conditions: the names of what the runs were checked against; none where they weren't.
    """

    name: str
    runs: tuple[ScenarioRun, ...]
    target: RunTarget | None
    curves: dict[tuple[str, str], ComparedCurve]
    reached: int
    to_target: dict[str, Interval]
    last: dict[str, Interval]
    end_s: Interval
    sent_bytes: Interval
    idle: Interval
    conditions: tuple[str, ...] = ()

    @property
    def ends(self) -> dict[str, int]:
        """Returns why the runs ended, each reason without its details, and how many runs did so."""
        return collections.Counter(run.history.end.partition(":")[0] for run in self.runs)


def compared(every: Sequence[Runs]) -> list[Compared]:
    """Returns each exchange of one scenario or of several, in their order; several are told apart by their names."""
    return [
        _compared(f"{runs.name}: {name}" if len(every) > 1 else name,
                  tuple(run for run in runs.runs if run.exchange == name), runs)
        for runs in every for name in dict.fromkeys(run.exchange for run in runs.runs)
    ]  # fmt: skip


def _compared(name: str, runs: tuple[ScenarioRun, ...], whole: Runs) -> Compared:
    histories, target = [run.history for run in runs], whole.target
    both = ("loss", "accuracy")
    measures = [measure for measure in both if all(np.isfinite(getattr(h, measure)).any() for h in histories)]
    looks = [(history, None if target is None else target.look(history)) for history in histories]
    reached = [(history, look) for history, look in looks if look is not None]
    return Compared(
        name,
        runs,
        target,
        {(measure, axis): _curve(histories, measure, field) for measure in measures for axis, field in AXES.items()},
        len(reached),
        {axis: Interval.of([float(getattr(h, field)[look]) for h, look in reached])
         for axis, field in AXES.items() if reached},
        {measure: Interval.of([float(getattr(h, measure)[-1]) for h in histories]) for measure in measures},
        Interval.of([history.end_s for history in histories]),
        Interval.of([float(history.sent_bytes[-1]) for history in histories]),
        Interval.of([_idle(history) for history in histories]),
        whole.conditions if all(history.violated_s for history in histories) else (),
    )  # fmt: skip


def _idle(history: History) -> float:
    whole = float(history.busy_s.sum() + history.idle_s.sum())
    return float(history.idle_s.sum()) / whole if whole else 0.0


def _curve(histories: Sequence[History], measure: str, axis: str) -> ComparedCurve:
    places = [np.asarray(getattr(history, axis), np.float64) for history in histories]
    grid = np.linspace(0.0, min(float(place[-1]) for place in places), _POINTS)
    values = np.stack([
        np.interp(grid, place, getattr(history, measure)) for history, place in zip(histories, places, strict=True)
    ])  # fmt: skip
    low, mean, high = column_intervals(values)
    return ComparedCurve(grid, mean, low, high)


_UNITS: Mapping[str, Callable[[float], str]] = {
    "seconds": units.seconds, "steps": "{:.0f} steps".format, "bytes": units.traffic,
    "loss": "{:.4g}".format, "accuracy": "{:.1%}".format,
}  # fmt: skip
_MOMENTS = 400


@final
@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer that runs give to their question.

    Attributes:
        verdict: "yes", "no", or "not sure" where the 90 % interval over seeds has both signs.
        ratio: of the better one's figure to the other's, by seeds; None: some runs have no figure.
    """

    verdict: Literal["yes", "no", "not sure"]
    text: str
    ratio: Interval | None


def answer(runs: Runs) -> Answer | None:
    """Returns the answer of a scenario's runs to its question; None: it has none.

    Figures are compared seed by seed: the answer is yes or no where the 90 % interval of the mean logarithm of their
    ratio, by Student's t, has one sign. Where not all runs reach the target, who reaches it more often is better if
    the other one never does.
    """
    question = runs.question
    if question is None:
        return None
    by_name = {exchange.name: exchange for exchange in compared([runs])}
    better, than = by_name[question.better], by_name[question.than]
    figures = [np.array([_figure(exchange, run, question.by) for run in exchange.runs]) for exchange in (better, than)]
    as_text = _UNITS[question.by]
    if not all(np.isfinite(of_runs).all() for of_runs in figures):
        return _by_reaching(better, than, question.by)
    more = 1 if question.by == "accuracy" else -1
    tiny = np.finfo(float).tiny
    ratio = Interval.of(np.log(np.maximum(figures[0], tiny) / np.maximum(figures[1], tiny)).tolist()).exp()
    signs = {math.copysign(1, more * math.log(end)) for end in (ratio.low, ratio.high)} if ratio.low > 0 else {1, -1}
    verdict: Literal["yes", "no", "not sure"] = "not sure" if len(signs) > 1 else "yes" if 1 in signs else "no"
    text = (
        f"{better.name} has {as_text(float(figures[0].mean()))}, {than.name} {as_text(float(figures[1].mean()))}: "
        f"{ratio.mean:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})."
    )
    return Answer(verdict, f"{text}{_ahead(better, than)}", ratio)


def answer_lines(every: Sequence[Runs]) -> list[str]:
    """Returns a line with question and answer for each of the scenarios that has one."""
    pairs = [(runs.question, answer(runs)) for runs in every]
    return [
        f"{question.text} {reply.verdict.capitalize()}. {reply.text}"
        for question, reply in pairs if question is not None and reply is not None
    ]  # fmt: skip


def _figure(exchange: Compared, run: ScenarioRun, by: str) -> float:
    if by not in AXES:
        return float(getattr(run.history, by)[-1])
    assert exchange.target is not None, "it is checked when the scenario is read"
    look = exchange.target.look(run.history)
    return math.inf if look is None else float(getattr(run.history, AXES[by])[look])


def _by_reaching(better: Compared, than: Compared, by: str) -> Answer:
    """Answers where not all runs reach the target, or a figure isn't a number."""
    counts = [f"{exchange.reached} of {len(exchange.runs)} runs of {exchange.name}" for exchange in (better, than)]
    text = f"{counts[0]} reach the target, and {counts[1]}."
    if than.reached == 0 and better.reached == len(better.runs) and by in AXES:
        return Answer("yes", f"{text} The first take {_UNITS[by](better.to_target[by].mean)}.", None)
    return Answer("no" if better.reached <= than.reached else "not sure", text, None)


def _ahead(better: Compared, than: Compared) -> str:
    """Says in how much of the time until both have reached the target the better one's mean loss is the lower one."""
    ours, theirs = (exchange.curves.get(("loss", "seconds")) for exchange in (better, than))
    if ours is None or theirs is None:
        return ""
    reached = [exchange.to_target["seconds"].mean for exchange in (better, than) if exchange.to_target]
    end = min(float(ours.x[-1]), float(theirs.x[-1]), *([max(reached)] if reached else []))
    times = np.linspace(0.0, end, _MOMENTS + 1)[1:]
    lower = np.interp(times, ours.x, ours.mean) < np.interp(times, theirs.x, theirs.mean)
    return f" Until {units.seconds(end)} its loss is the lower one in {lower.mean():.0%} of the time."
