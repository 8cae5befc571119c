"""Tables of exchanges, as texts: when each reached the target, and where it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from alpa_dejavu._util import units
from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.scenarios._comparison import AXES, Compared
from alpa_dejavu.playground.scenarios._scenario import Runs, Target

__all__ = ["NOTE", "details", "tables", "target_text"]

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


def tables(every: Sequence[Compared]) -> list[tuple[Sequence[str], list[list[str]]]]:
    """Returns heads and rows of up to three tables: with a row for each exchange, of the target, unless none has one,
    and of the end; with one for each exchange and condition, unless there is none, of when they were violated.
    """
    found: list[tuple[Sequence[str], list[list[str]]]] = []
    if any(one.target for one in every):
        found.append((_TARGET, [_target_row(one) for one in every]))
    found.append((_END, [_end_row(one) for one in every]))
    if any(one.conditions for one in every):
        found.append((_CONDITIONS, [row for one in every for row in _condition_rows(one)]))
    return found


def details(every: Sequence[Compared]) -> list[str]:
    """Returns a line for each exchange of which a run stalled: who waits for what in the first one that did; and one
    for each note of an exchange, once for all its seeds.
    """
    stalled = [next((run for run in one.runs if ":" in run.history.end), None) for one in every]
    texts = [
        f"{one.name}, seed {run.seed}: {run.history.end}"
        for one, run in zip(every, stalled, strict=True) if run is not None
    ]  # fmt: skip
    texts += [
        f"{one.name}: {note}"
        for one in every for note in dict.fromkeys(note for run in one.runs for note in run.history.notes)
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


def _target_row(one: Compared) -> list[str]:
    if one.target is None:
        return [one.name, "no target", *("" for _ in AXES)]
    found = one.to_target
    cells = [_text(found[axis], _UNITS[axis]) if axis in found else "not reached" for axis in AXES]
    return [one.name, f"{one.reached} of {len(one.runs)}", *cells]


def _end_row(one: Compared) -> list[str]:
    return [
        one.name,
        *(_text(one.last[each], "{:.4g}".format) if each in one.last else "" for each in ("loss", "accuracy")),
        _text(one.end_s, units.seconds),
        _text(one.sent_bytes, units.traffic),
        f"{one.idle.mean:.1%}",
        ", ".join(f"{end} ({count})" if len(one.ends) > 1 else end for end, count in one.ends.items()),
    ]


def _condition_rows(one: Compared) -> list[list[str]]:
    rows = []
    for n, condition in enumerate(one.conditions):
        moments = [at_s for at_s in (run.history.violated_s[n] for run in one.runs) if at_s is not None]
        first = units.seconds(min(moments)) if moments else "held"
        rows.append([one.name, condition, f"{len(moments)} of {len(one.runs)}", first])
    return rows


def _text(value: Interval, said: Callable[[float], str]) -> str:
    """A figure that is never below zero, with its interval."""
    if not math.isfinite(value.mean):
        return "not a number"
    if math.isinf(value.low) or value.low == value.high:
        return said(value.mean)
    return f"{said(value.mean)} ({said(max(value.low, 0.0))} to {said(value.high)})"

