"""The table of exchanges, as texts: when each reached the target, and where it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from alpa_dejavu._util import units
from alpa_dejavu.playground.scenarios._comparison import AXES, Compared, Interval
from alpa_dejavu.playground.scenarios._scenario import Runs, Target

__all__ = ["NOTE", "table", "target_text"]

NOTE = (
    "A mean over seeds, and its 90 % interval by Student's t in brackets; one seed has none. Time to the target is of the "
    "runs that reached it alone, at the first look at the model at which they had. Steps are gradients of all workers."
)
_HEADS = ("exchange", "reached", *(f"{axis} to target" for axis in AXES), "loss at the end", "accuracy", "ended after",
          "bytes", "idle", "why it ended")  # fmt: skip


def table(every: Sequence[Compared]) -> tuple[Sequence[str], list[list[str]]]:
    """Returns the heads of the table, and a row for each exchange."""
    return _HEADS, [_row(one) for one in every]


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


def _row(one: Compared) -> list[str]:
    units_of: dict[str, Callable[[float], str]] = {"seconds": units.seconds, "steps": _whole, "bytes": units.size}
    to_target = [
        _text(one.to_target[axis], units_of[axis]) if axis in one.to_target else "not reached" for axis in AXES
    ]
    return [
        one.name,
        f"{one.reached} of {len(one.runs)}",
        *to_target,
        *(_text(one.last[each], _figure) if each in one.last else "" for each in ("loss", "accuracy")),
        _text(one.end_s, units.seconds),
        _text(one.sent_bytes, units.size),
        _text(one.idle, _share),
        one.ends,
    ]


def _text(value: Interval, said: Callable[[float], str]) -> str:
    """A figure that is never below zero, with its interval."""
    if not math.isfinite(value.mean):
        return "not a number"
    if math.isinf(value.low) or value.low == value.high:
        return said(value.mean)
    return f"{said(value.mean)} ({said(max(value.low, 0.0))} to {said(value.high)})"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _share(value: float) -> str:
    return f"{value:.1%}"
