"""Pictures of a race of candidates, as pages that open in a browser."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from alpa_dejavu.training.initialization import Curve, Initialized

SMOOTHED_STEPS = 20


def smoothed(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean of each loss and those of a few steps before."""
    sums = np.cumsum(np.concatenate([[0.0], losses]))
    ends = np.arange(1, len(losses) + 1)
    begins = np.maximum(0, ends - SMOOTHED_STEPS)
    means: NDArray[np.float64] = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def steps_to(losses: NDArray[np.float64], target: float) -> int | None:
    """The first step at which the smoothed loss is a target or less; None: there is none."""
    found = np.flatnonzero(smoothed(losses) <= target)
    return int(found[0]) + 1 if found.size else None


def write_plots(result: Initialized, steps_by_workers: Mapping[int, int | None], folder: Path) -> list[Path]:
    """Three pages: the curves, steps to a target by workers, and where candidates began and ended."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {"curves": _curves(result), "workers": _workers(steps_by_workers), "weights": _weights(result)}
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.html"
        figure.write_html(path, include_plotlyjs="directory")
        paths.append(path)
    return paths


def _curves(result: Initialized) -> go.Figure:
    figure = go.Figure(layout={"template": "plotly_white", "title": "Loss of each candidate, to where it was dropped"})
    for curve in result.curves:
        if not curve.losses.size:
            continue
        steps = 1 + np.arange(len(curve.losses))
        losses = smoothed(curve.losses)
        figure.add_scatter(
            x=steps, y=losses, name=f"candidate {curve.number}", hovertext=curve.why,
            line={"width": 3 if curve.number == result.chosen else 1},
        )  # fmt: skip
        if curve.dropped_step is not None:
            figure.add_scatter(
                x=steps[-1:], y=losses[-1:], mode="markers", marker={"symbol": "x", "size": 9, "color": "#444"},
                hovertext=f"candidate {curve.number}: {curve.why}", showlegend=False,
            )  # fmt: skip
    for rung in result.rungs:
        figure.add_vline(rung, line={"dash": "dot", "color": "#999"})
    figure.update_xaxes(title=f"step (dotted: rungs; crosses: dropped; means of {SMOOTHED_STEPS} steps)", type="log")
    figure.update_yaxes(title="training loss", type="log")
    return figure


def _workers(steps_by_workers: Mapping[int, int | None]) -> go.Figure:
    workers = sorted(steps_by_workers)
    figure = go.Figure(layout={"template": "plotly_white", "title": "Steps per worker to what one worker reaches"})
    figure.add_bar(x=[str(count) for count in workers], y=[steps_by_workers[count] for count in workers])
    figure.update_xaxes(title="workers, each with a start of its own")
    figure.update_yaxes(title="steps until the loss is that of one worker at its end")
    return figure


def _weights(result: Initialized) -> go.Figure:
    """Where candidates began and ended, in the two directions in which they differ most."""
    curves = [curve for curve in result.curves if _began_and_ended(curve)]
    figure = go.Figure(layout={"template": "plotly_white", "title": "Weights of candidates: PCA of starts and ends"})
    if len(curves) > 1:
        rows = np.array([weights for curve in curves for weights in (curve.started, curve.ended)])
        points = PCA(2, svd_solver="full").fit_transform(rows).reshape(len(curves), 2, 2)
        for curve, (begin, end) in zip(curves, points, strict=True):
            figure.add_scatter(
                x=[begin[0], end[0]], y=[begin[1], end[1]], name=f"candidate {curve.number}", mode="lines+markers",
                marker={"symbol": ["circle-open", "circle"], "size": 10}, hovertext=["start", curve.why],
            )  # fmt: skip
    figure.update_xaxes(title="first component (open: start, filled: end)")
    figure.update_yaxes(title="second component")
    return figure


def _began_and_ended(curve: Curve) -> bool:
    return curve.started is not None and curve.ended is not None
