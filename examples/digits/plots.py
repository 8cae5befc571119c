"""A page with pictures of a race of candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from alpa_dejavu.report import Section, add_curve, color_of, finished, log_axis, sections_page
from alpa_dejavu.training.initialization import Curve, Initialized

SMOOTHED_STEPS = 20
_HEIGHT = 420


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


def plots_page(result: Initialized, steps_by_workers: Mapping[int, int | None]) -> str:
    """A page with the curves, the steps to a target by workers, and where candidates began and ended."""
    about = f"Means of {SMOOTHED_STEPS} steps, to where each was dropped (crosses); dotted lines are rungs."
    sections = [
        Section("Losses of candidates", about, _curves(result)),
        Section("Steps per worker", "Until the loss is that of one worker at its end.", _workers(steps_by_workers)),
        Section("Weights of candidates", "Starts (open) and ends (filled), by their principal components.",
                _weights(result)),
    ]  # fmt: skip
    facts = [("chosen", f"candidate {result.chosen}"), ("steps", str(result.steps))]
    lead = "Training begins from several starts; the best goes on."
    return sections_page("A race of candidates", lead, facts, sections)


def _curves(result: Initialized) -> dict[str, Any]:
    figure = go.Figure()
    for curve in result.curves:
        if not curve.losses.size:
            continue
        steps, losses = 1 + np.arange(len(curve.losses)), smoothed(curve.losses)
        name, color = f"candidate {curve.number}", color_of(curve.number)
        add_curve(figure, name, steps.tolist(), losses.tolist(), color=color, hovertext=curve.why)
        if curve.dropped_step is not None:
            figure.add_scatter(
                x=steps[-1:], y=losses[-1:], mode="markers", marker={"symbol": "x", "size": 9, "color": color},
                hovertext=f"{name}: {curve.why}", showlegend=False, legendgroup=name,
            )  # fmt: skip
    for rung in result.rungs:
        figure.add_vline(rung, line={"dash": "dot", "color": "#999"})
    every = [float(loss) for curve in result.curves for loss in smoothed(curve.losses)]
    longest = max((len(curve.losses) for curve in result.curves), default=1)
    figure.update_xaxes(title="step", **log_axis([1, longest], "{:g}".format))
    figure.update_yaxes(title="training loss", **log_axis(every, "{:g}".format))
    return finished(figure, _HEIGHT)


def _workers(steps_by_workers: Mapping[int, int | None]) -> dict[str, Any]:
    workers = sorted(steps_by_workers)
    figure = go.Figure()
    steps = [steps_by_workers[count] for count in workers]
    figure.add_bar(x=[str(count) for count in workers], y=steps, marker={"color": color_of(0)})
    figure.update_xaxes(title="workers, each with a start of its own", type="category")
    figure.update_yaxes(title="steps")
    return finished(figure, _HEIGHT)


def _weights(result: Initialized) -> dict[str, Any]:
    """Where candidates began and ended, in the two directions in which they differ most."""
    curves = [curve for curve in result.curves if _began_and_ended(curve)]
    figure = go.Figure()
    if len(curves) > 1:
        rows = np.array([weights for curve in curves for weights in (curve.started, curve.ended)])
        points = PCA(2, svd_solver="full").fit_transform(rows).reshape(len(curves), 2, 2)
        for curve, (begin, end) in zip(curves, points, strict=True):
            color = color_of(curve.number)
            figure.add_scatter(
                x=[begin[0], end[0]], y=[begin[1], end[1]], name=f"candidate {curve.number}", mode="lines+markers",
                line={"color": color}, marker={"symbol": ["circle-open", "circle"], "size": 10, "color": color},
                hovertext=["start", curve.why],
            )  # fmt: skip
    figure.update_xaxes(title="first component")
    figure.update_yaxes(title="second component")
    return finished(figure, _HEIGHT)


def _began_and_ended(curve: Curve) -> bool:
    return curve.started is not None and curve.ended is not None
