"""The chart of each stage's memory over time, against what its devices have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu.report._lanes import lane_names
from alpa_dejavu.report._style import COLORS, finished, stage_colors
from alpa_dejavu.simulation.step import Timeline

_POINTS = 800
"""How many times a line is drawn for; where there are more, each point is the most of its time."""


def memory_chart(timeline: Timeline) -> dict[str, Any]:
    """Returns a chart of the memory of each stage's devices over a step, with a dashed line for each memory limit, as
    plotly's JSON data.
    """
    figure = go.Figure()
    held_at = f"%{{y:.3f}} {units.GIBIBYTES.name} at %{{x:.4g}} {units.SECONDS.name}"
    names = lane_names(timeline)
    for n, (name, color) in enumerate(zip(names, stage_colors(len(names)), strict=True)):
        times, held = _thinned(*timeline.memory_over_time(n), timeline.step_s)
        figure.add_scatter(
            x=times.astype(np.float32),
            y=(held / units.GIBIBYTES.value).astype(np.float32),
            mode="lines",
            line={"shape": "hv", "color": color, "width": 1.6},
            name=name,
            meta=n,
            hovertemplate=f"{name}: {held_at}<extra></extra>",
        )
    limits = {stage.memory_limit_bytes for stage in timeline.stages if math.isfinite(stage.memory_limit_bytes)}
    for limit in sorted(limits):
        figure.add_hline(
            y=limit / units.GIBIBYTES.value,
            line={"color": COLORS["limit"], "dash": "dash", "width": 1.6},
            annotation={"text": f"limit: {units.size(limit)}", "font": {"color": COLORS["limit"]}},
        )
    figure.update_xaxes(title=f"time in the step ({units.SECONDS.name})", range=[0, timeline.step_s])
    figure.update_yaxes(title=f"memory of each device ({units.GIBIBYTES.name})", rangemode="tozero")
    return finished(figure, 380)


def fullest_stage(timeline: Timeline) -> int:
    """Returns the stage whose peak is the largest share of its devices' memory; without limits, the largest peak."""
    peaks = [float(np.max(timeline.memory_over_time(n)[1])) for n in range(len(lane_names(timeline)))]
    limits = [stage.memory_limit_bytes for stage in timeline.stages]
    return max(range(len(peaks)), key=lambda n: (peaks[n] / limits[n], peaks[n], -n))


def _thinned(
    times: NDArray[np.float64], held: NDArray[np.float64], step_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if len(times) <= _POINTS:
        return times, held
    bins = np.minimum((times / step_s * _POINTS).astype(np.int64), _POINTS - 1)
    first = np.flatnonzero(np.diff(bins, prepend=-1))
    return times[first], np.maximum.reduceat(held, first)
