"""Tables of exchanges, as texts: when each reached the target, and where it ended."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from alpa_dejavu._util import units
from alpa_dejavu._util.extras import from_extra
from alpa_dejavu._util.interval import Interval
from alpa_dejavu.playground.scenarios._comparison import AXES, Compared, answer_lines, compared
from alpa_dejavu.playground.scenarios._scenario import INTERVALS, Runs, RunTarget, ScenarioRun

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
    """A table of texts: a title, of each column its head, and which columns narrow pages show unasked."""

    title: str
    heads: Sequence[str]
    rows: list[list[str]]
    kept: Sequence[str]


def tables(every: Sequence[Compared]) -> list[TextTable]:
    """Returns up to three tables: with a row for each exchange, of the target, unless none has one, and of the end;
    with one for each exchange and condition, unless there is none, of when they were violated.
    """
    violated = [row for exchange in every for row in _condition_rows(exchange)]
    ends = [_end_row(exchange) for exchange in every]
    filled = [n for n in range(len(_END)) if any(row[n] for row in ends)]  # without a problem there is no loss
    kept = [_END[n] for n in filled if n in (0, 2, 3)]
    shown = [TextTable("At the end", [_END[n] for n in filled], [[row[n] for n in filled] for row in ends], kept)]
    if any(exchange.target for exchange in every):
        rows = [_target_row(exchange) for exchange in every]
        shown.insert(0, TextTable("Time to the target", _TARGET, rows, _TARGET[:3]))
    return [*shown, TextTable("Conditions", _CONDITIONS, violated, _CONDITIONS)] if violated else shown


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


def _target(target: RunTarget | None) -> str:
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


_HEIGHT = 300


def runs_page(*every: Runs) -> str:
    """Returns an HTML page about the runs of one scenario or of several, which opens in a browser without network.

    It shows a table of the time to the target, curves of loss and accuracy by seconds, steps and bytes, each with its
    90 % interval over seeds, and of the first seed of each exchange who computes, waits, sends and has failed at a
    moment that a slider chooses.

    Returns:
        HTML, of about 2 MB: most of it is plotly.js. Whatever users named is escaped.
    """
    from alpa_dejavu.report import color_of, render

    exchanges = compared(every)
    seeds = {len(exchange.runs) for exchange in exchanges}
    return render(
        "runs.html.j2",
        title=", ".join(dict.fromkeys(runs.name for runs in every)),
        facts=[
            ("problem", ", ".join(dict.fromkeys(runs.problem or "time alone" for runs in every))),
            ("workers", ", ".join(dict.fromkeys(str(len(runs.hosts)) for runs in every))),
            ("target", target_text(every)),
            ("exchanges", str(len(exchanges))),
            ("seeds", ", ".join(map(str, sorted(seeds)))),
        ],
        answers=answer_lines(every),
        tables=tables(exchanges),
        notes=[*details(exchanges), NOTE],
        legend=[(exchange.name, color_of(n)) for n, exchange in enumerate(exchanges)],
        charts=_charts(exchanges),
        timelines=_timelines(every, exchanges),
    )


def _charts(exchanges: Sequence[Compared]) -> dict[str, Any]:
    curves = {curve for exchange in exchanges for curve in exchange.curves}
    measures = [measure for measure in ("loss", "accuracy") if (measure, "seconds") in curves]
    return {f"{measure}-{axis}": _chart(exchanges, measure, axis) for axis in AXES for measure in measures}


def _chart(exchanges: Sequence[Compared], measure: str, axis: str) -> dict[str, Any]:
    import numpy as np

    from alpa_dejavu.report import add_curve, color_of, finished

    go = from_extra("plots", "plotly.graph_objects")
    shown = [(n, exchange) for n, exchange in enumerate(exchanges) if (measure, axis) in exchange.curves]
    most = max(float(np.max(exchange.curves[measure, axis].x, initial=0.0)) for _, exchange in shown)
    title, size = _axis(axis, most)
    figure = go.Figure()
    for n, exchange in shown:
        curve = exchange.curves[measure, axis]
        mean = [value if np.isfinite(value) else None for value in curve.mean.tolist()]
        ends = (curve.low.tolist(), curve.high.tolist()) if np.isfinite(curve.low).all() else None
        add_curve(figure, html.escape(exchange.name), (curve.x / size).tolist(), mean, ends, color=color_of(n), meta=n)
    figure.update_layout(
        xaxis={"title": {"text": title}, "rangemode": "tozero"},
        yaxis={"title": {"text": f"held-out {measure}"}},
        showlegend=False,
        hovermode="x unified",
    )
    return finished(figure, _HEIGHT)


def _axis(name: str, most: float) -> tuple[str, float]:
    """Returns the title of an axis whose figures go up to `most`, and in how many units of it one of its unit is."""
    if name == "steps":
        return "steps of all workers", 1.0
    unit = units.unit_of_seconds(most) if name == "seconds" else units.unit_of_bytes(most)
    return f"{'virtual time' if name == 'seconds' else 'sent'} ({unit.name})", unit.value


def _timelines(every: Sequence[Runs], exchanges: Sequence[Compared]) -> dict[str, Any]:
    """All that the slider needs of the first run of each exchange that has a timeline."""
    hosts = {id(run): runs.hosts for runs in every for run in runs.runs}
    first = {exchange.name: exchange.runs[0] for exchange in exchanges if len(exchange.runs[0].history.timeline)}
    return {name: _timeline(run, hosts[id(run)]) for name, run in first.items()}


def _timeline(run: ScenarioRun, hosts: Sequence[str]) -> dict[str, Any]:
    kept = run.history.timeline
    known_s = run.history.end_s if len(kept) < INTERVALS else float(kept["start_s"].max())
    return {
        "seed": run.seed,
        "hosts": list(hosts),
        "endSeconds": run.history.end_s,
        "knownSeconds": known_s,
        "end": run.history.end,
        **{name: kept[name].tolist() for name in ("worker", "kind", "other")},
        "start": [float(f"{value:.7g}") for value in kept["start_s"].tolist()],
        "stop": [float(f"{value:.7g}") for value in kept["end_s"].tolist()],
    }
