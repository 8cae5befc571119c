"""The page of a scenario's runs: curves with intervals, times to the target, and who did what at each moment."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from alpa_dejavu.playground.scenarios._comparison import AXES, Compared, answer_lines, compared
from alpa_dejavu.playground.scenarios._scenario import INTERVALS, Runs, ScenarioRun
from alpa_dejavu.playground.scenarios._table import NOTE, details, tables, target_text

__all__ = ["runs_page"]

_HEIGHT = 300
_AXES = {"seconds": "virtual seconds", "steps": "steps of all workers", "bytes": "bytes sent"}
_DIGITS = 7


def runs_page(*every: Runs) -> str:
    """Returns an HTML page about the runs of one scenario or of several, which opens in a browser without network.

    It shows a table of the time to the target, curves of loss and accuracy by seconds, steps and bytes, each with its
    90 % interval over seeds, and of the first seed of each exchange who computes, waits, sends and has failed at a
    moment that a slider chooses.

    Returns:
        HTML, of about 2 MB: most of it is plotly.js. Whatever users named is escaped.
    """
    from alpa_dejavu.report import template

    exchanges = compared(every)
    seeds = {len(exchange.runs) for exchange in exchanges}
    return template("runs.html.j2").render(
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
        legend=[(exchange.name, _color(n)) for n, exchange in enumerate(exchanges)],
        charts=_charts(exchanges),
        timelines=_timelines(every, exchanges),
    )


def _charts(exchanges: Sequence[Compared]) -> dict[str, Any]:
    curves = {curve for exchange in exchanges for curve in exchange.curves}
    measures = [measure for measure in ("loss", "accuracy") if (measure, "seconds") in curves]
    return {f"{measure}-{axis}": _chart(exchanges, measure, axis) for axis in AXES for measure in measures}


def _chart(exchanges: Sequence[Compared], measure: str, axis: str) -> dict[str, Any]:
    import numpy as np
    import plotly.graph_objects as go

    from alpa_dejavu.report import finished

    figure = go.Figure()
    for n, exchange in enumerate(exchanges):
        if (measure, axis) not in exchange.curves:
            continue
        curve, name, color = exchange.curves[measure, axis], html.escape(exchange.name), _color(n)
        if np.isfinite(curve.low).all():
            figure.add_scatter(
                x=[*curve.x, *curve.x[::-1]], y=[*curve.high, *curve.low[::-1]], fill="toself", fillcolor=color,
                opacity=0.15, line={"width": 0}, hoverinfo="skip", name=name, meta=n,
            )  # fmt: skip
        figure.add_scatter(
            x=curve.x.tolist(), y=[value if np.isfinite(value) else None for value in curve.mean.tolist()], name=name,
            line={"color": color}, mode="lines", meta=n,
        )  # fmt: skip
    figure.update_layout(
        xaxis={"title": {"text": _AXES[axis]}, "rangemode": "tozero"},
        yaxis={"title": {"text": f"held-out {measure}"}},
        showlegend=False,
        hovermode="x unified",
    )
    chart = finished(figure, _HEIGHT)
    chart["layout"]["margin"]["t"] = 10  # there is no legend above
    return chart


def _color(n: int) -> str:
    """Returns the colour of the n-th exchange in all charts."""
    from plotly.colors import qualitative

    return str(qualitative.D3[n % len(qualitative.D3)])


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
        "start": [_short(value) for value in kept["start_s"].tolist()],
        "stop": [_short(value) for value in kept["end_s"].tolist()],
    }


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
