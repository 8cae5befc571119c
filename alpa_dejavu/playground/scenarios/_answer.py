"""The answer to a scenario's question, in words and figures, from its runs alone."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, final

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.scenarios._comparison import AXES, Compared, compared
from alpa_dejavu.playground.scenarios._scenario import Run, Runs

__all__ = ["Answer", "answer", "answer_lines"]

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
        text: by how much, and when, in sentences.
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
    found = {one.name: one for one in compared([runs])}
    better, than = found[question.better], found[question.than]
    figures = [np.array([_figure(one, run, question.by) for run in one.runs]) for one in (better, than)]
    said = _UNITS[question.by]
    if not all(np.isfinite(each).all() for each in figures):
        return _by_reaching(better, than, question.by)
    more = 1 if question.by == "accuracy" else -1
    ratio = _ratio(figures[0], figures[1])
    signs = {math.copysign(1, more * math.log(end)) for end in (ratio.low, ratio.high)} if ratio.low > 0 else {1, -1}
    verdict: Literal["yes", "no", "not sure"] = "not sure" if len(signs) > 1 else "yes" if 1 in signs else "no"
    text = (
        f"{better.name} has {said(float(figures[0].mean()))}, {than.name} {said(float(figures[1].mean()))}: "
        f"{ratio.mean:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})."
    )
    return Answer(verdict, f"{text}{_ahead(better, than)}", ratio)


def answer_lines(every: Sequence[Runs]) -> list[str]:
    """Returns a line with question and answer for each of the scenarios that has one."""
    pairs = [(runs.question, answer(runs)) for runs in every]
    return [
        f"{question.text} {found.verdict.capitalize()}. {found.text}"
        for question, found in pairs if question is not None and found is not None
    ]  # fmt: skip


def _figure(one: Compared, run: Run, by: str) -> float:
    if by not in AXES:
        return float(getattr(run.history, by)[-1])
    assert one.target is not None, "it is checked when the scenario is read"
    look = one.target.look(run.history)
    return math.inf if look is None else float(getattr(run.history, AXES[by])[look])


def _ratio(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> Interval:
    """The mean ratio of positive figures, seed by seed, by its logarithm."""
    tiny = np.finfo(float).tiny
    return Interval.of(np.log(np.maximum(ours, tiny) / np.maximum(theirs, tiny)).tolist()).exp()


def _by_reaching(better: Compared, than: Compared, by: str) -> Answer:
    """The answer where not all runs reach the target, or a figure isn't a number."""
    counts = [f"{one.reached} of {len(one.runs)} runs of {one.name}" for one in (better, than)]
    text = f"{counts[0]} reach the target, and {counts[1]}."
    if than.reached == 0 and better.reached == len(better.runs) and by in AXES:
        return Answer("yes", f"{text} The first take {_UNITS[by](better.to_target[by].mean)}.", None)
    return Answer("no" if better.reached <= than.reached else "not sure", text, None)


def _ahead(better: Compared, than: Compared) -> str:
    """In how much of the time until both have reached the target the better one's mean loss is the lower one."""
    ours, theirs = (one.curves.get(("loss", "seconds")) for one in (better, than))
    if ours is None or theirs is None:
        return ""
    reached = [one.to_target["seconds"].mean for one in (better, than) if one.to_target]
    end = min(float(ours.x[-1]), float(theirs.x[-1]), *([max(reached)] if reached else []))
    times = np.linspace(0.0, end, _MOMENTS + 1)[1:]
    lower = np.interp(times, ours.x, ours.mean) < np.interp(times, theirs.x, theirs.mean)
    return f" Until {units.seconds(end)} its loss is the lower one in {lower.mean():.0%} of the time."
