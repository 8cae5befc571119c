"""Tables of exchanges, as texts: when each reached the target, and where it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from alpa_dejavu._util import units
from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.scenarios._comparison import AXES, Compared
from alpa_dejavu.playground.scenarios._scenario import Runs, Target

__all__ = ["NOTE", "TextTable", "details", "tables", "target_text"]

_MOST_DETAILS = 400

NOTE = (
    "A mean over seeds, and its 90 % interval by Student's t in brackets; one seed has none. Time to the target is of "
    "the runs that reached it alone, at the first look at the model at which they had. Steps are gradients of all "
    "workers; idle is the share of their time in which they don't compute."
)
_UNITS: dict[str, Callable[[float], str]] = {"seconds": units.seconds, "steps": "{:.0f}".format, "bytes": units.traffic}
_TARGET = ("exchange", "reached", *(f"{axis} to the target" for axis in AXES))
_CONDITIONS = ("exchange", "condition", "runs that violated it", "first violated at")
_END = ("exchange", "loss at the end", "accuracy", "seconds", "bytes", "idle", "ended by")


class TextTable(NamedTuple):
    """A table of texts: a title, and of each column its head."""

    title: str
    heads: Sequence[str]
    rows: list[list[str]]


def tables(every: Sequence[Compared]) -> list[TextTable]:
    """Returns up to three tables: with a row for each exchange, of the target, unless none has one, and of the end;
    with one for each exchange and condition, unless there is none, of when they were violated.
    """
    shown: list[TextTable] = []
    if any(exchange.target for exchange in every):
        shown.append(TextTable("Time to the target", _TARGET, [_target_row(exchange) for exchange in every]))
    shown.append(TextTable("At the end", _END, [_end_row(exchange) for exchange in every]))
    if any(exchange.conditions for exchange in every):
        rows = [row for exchange in every for row in _condition_rows(exchange)]
        shown.append(TextTable("Conditions", _CONDITIONS, rows))
    return shown


def details(every: Sequence[Compared]) -> list[str]:
    """Returns a line for each exchange of which a run stalled: who waits for what in the first one that did; and one
    for each note of an exchange, once for all its seeds.
    """
    stalled = [next((run for run in exchange.runs if ":" in run.history.end), None) for exchange in every]
    texts = [
        f"{exchange.name}, seed {run.seed}: {run.history.end}"
        for exchange, run in zip(every, stalled, strict=True) if run is not None
    ]  # fmt: skip
    texts += [
        f"{exchange.name}: {note}"
        for exchange in every for note in dict.fromkeys(note for run in exchange.runs for note in run.history.notes)
    ]  # fmt: skip
    return [text if len(text) <= _MOST_DETAILS else f"{text[:_MOST_DETAILS]} ..." for text in texts]


def target_text(every: Sequence[Runs]) -> str:
    """Returns what the runs are timed to, for people."""
    targets = [runs.target for runs in every]
    if all(target == targets[0] for target in targets):
        return _target(targets[0])
    return "; ".join(f"{runs.name}: {_target(runs.target)}" for runs in every)


def _target(target: Target | None) -> str:
    if target is None:
        return "none"
    return f"{target.measure} {'at most' if target.measure == 'loss' else 'at least'} {target.value:g}"


def _target_row(exchange: Compared) -> list[str]:
    if exchange.target is None:
        return [exchange.name, "no target", *("" for _ in AXES)]
    to_target = exchange.to_target
    cells = [_text(to_target[axis], _UNITS[axis]) if axis in to_target else "not reached" for axis in AXES]
    return [exchange.name, f"{exchange.reached} of {len(exchange.runs)}", *cells]


def _end_row(exchange: Compared) -> list[str]:
    last = exchange.last
    return [
        exchange.name,
        *(_text(last[measure], "{:.4g}".format) if measure in last else "" for measure in ("loss", "accuracy")),
        _text(exchange.end_s, units.seconds),
        _text(exchange.sent_bytes, units.traffic),
        f"{exchange.idle.mean:.1%}",
        ", ".join(f"{end} ({count})" if len(exchange.ends) > 1 else end for end, count in exchange.ends.items()),
    ]


def _condition_rows(exchange: Compared) -> list[list[str]]:
    rows = []
    for n, condition in enumerate(exchange.conditions):
        moments = [at_s for at_s in (run.history.violated_s[n] for run in exchange.runs) if at_s is not None]
        first = units.seconds(min(moments)) if moments else "held"
        rows.append([exchange.name, condition, f"{len(moments)} of {len(exchange.runs)}", first])
    return rows


def _text(value: Interval, as_text: Callable[[float], str]) -> str:
    """A figure that is never below zero, with its interval."""
    if not math.isfinite(value.mean):
        return "not a number"
    if math.isinf(value.low) or value.low == value.high:
        return as_text(value.mean)
    return f"{as_text(value.mean)} ({as_text(max(value.low, 0.0))} to {as_text(value.high)})"

