"""Exchanges compared by their runs: curves with intervals over seeds, and when a target is reached."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.interval import Interval, column_intervals
from alpa_dejavu.playground.history import History
from alpa_dejavu.playground.scenarios._scenario import Run, Runs, Target

__all__ = ["AXES", "Compared", "Curve", "compared"]

Floats = NDArray[np.float64]
AXES = {"seconds": "time_s", "steps": "steps", "bytes": "sent_bytes"}
"""What curves and targets are told by, and a history's field of it."""
_POINTS = 200


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Curve:
    """A figure over an axis: its mean over seeds with its 90 % interval, all of shape (X,).

    It ends where the first of the seeds' runs does. Between two looks a run is taken to go in a line.
    """

    x: Floats
    mean: Floats
    low: Floats
    high: Floats


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Compared:
    """One exchange over its seeds.

    Attributes:
        name: for people.
        runs: one for each seed.
        target: what they are timed to; None: nothing.
        curves: by measure, "loss" or "accuracy", and axis, one of `AXES`; none where nothing was computed.
        reached: how many runs reached the target.
        to_target: by axis, the interval over those that reached it; empty if none did, or there is no target.
        last: by measure, the interval at the end.
        end_s, sent_bytes: intervals of the virtual seconds and of the bytes of the whole run.
        idle: the interval of the share of time in which workers don't compute.
        conditions: the names of what the runs were checked against; none where they weren't.
    """

    name: str
    runs: tuple[Run, ...]
    target: Target | None
    curves: dict[tuple[str, str], Curve]
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
    found = []
    for runs in every:
        by_name: dict[str, list[Run]] = {}
        for run in runs.runs:
            by_name.setdefault(run.exchange, []).append(run)
        prefix = f"{runs.name}: " if len(every) > 1 else ""
        found += [_compared(prefix + name, tuple(each), runs) for name, each in by_name.items()]
    return found


def _compared(name: str, runs: tuple[Run, ...], whole: Runs) -> Compared:
    histories, target = [run.history for run in runs], whole.target
    measures = [each for each in ("loss", "accuracy") if all(np.isfinite(getattr(h, each)).any() for h in histories)]
    looks = [(history, None if target is None else target.look(history)) for history in histories]
    reached = [(history, look) for history, look in looks if look is not None]
    return Compared(
        name,
        runs,
        target,
        {(each, axis): _curve(histories, each, field) for each in measures for axis, field in AXES.items()},
        len(reached),
        {axis: Interval.of([float(getattr(h, field)[look]) for h, look in reached])
         for axis, field in AXES.items() if reached},
        {each: Interval.of([float(getattr(h, each)[-1]) for h in histories]) for each in measures},
        Interval.of([history.end_s for history in histories]),
        Interval.of([float(history.sent_bytes[-1]) for history in histories]),
        Interval.of([_idle(history) for history in histories]),
        whole.conditions if all(history.violated_s for history in histories) else (),
    )  # fmt: skip


def _idle(history: History) -> float:
    whole = float(history.busy_s.sum() + history.idle_s.sum())
    return float(history.idle_s.sum()) / whole if whole else 0.0


def _curve(histories: Sequence[History], measure: str, axis: str) -> Curve:
    places = [np.asarray(getattr(history, axis), np.float64) for history in histories]
    grid = np.linspace(0.0, min(float(place[-1]) for place in places), _POINTS)
    values = np.stack([
        np.interp(grid, place, getattr(history, measure)) for history, place in zip(histories, places, strict=True)
    ])  # fmt: skip
    low, mean, high = column_intervals(values)
    return Curve(grid, mean, low, high)
