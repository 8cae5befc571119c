"""Charts of memory over time and of layers, and the timeline as data."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu._util.extras import from_extra
from alpa_dejavu.clusters.placement import site_of
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.plans.stage_rows import degrees_text, kept_text
from alpa_dejavu.problem import MeshConfig, StagePlan
from alpa_dejavu.report._style import COLORS, finished
from alpa_dejavu.report.trace_events import lane_names
from alpa_dejavu.simulation.step import Timeline

go: Any = from_extra("plots", "plotly.graph_objects")

_NUMBERED = 16
"""How many stages have their number in the chart of layers, on narrow pages, too."""
_POINTS = 800
"""How many times a line is drawn for; where there are more, each point is the most of its time."""


def memory_chart(timeline: Timeline) -> dict[str, Any]:
    """Returns a chart of each stage's memory and limit over a step, as plotly's JSON data."""
    figure = go.Figure()
    unit = units.unit_of_seconds(timeline.step_s)
    shown_at = f"%{{y:.3f}} {units.GIBIBYTES.name} at %{{x:.4~r}} {unit.name}"
    for n, name in enumerate(lane_names(timeline)):
        times, num_bytes = _thinned(*timeline.memory_over_time(n), timeline.step_s)
        figure.add_scatter(
            x=(times / unit.value).astype(np.float32),
            y=(num_bytes / units.GIBIBYTES.value).astype(np.float32),
            mode="lines",
            line={"shape": "hv"},
            name=name,
            meta=n,
            hovertemplate=f"{name}: {shown_at}<extra></extra>",
        )
    limits = {stage.memory_limit_bytes for stage in timeline.stages if math.isfinite(stage.memory_limit_bytes)}
    for n, limit in enumerate(sorted(limits, reverse=True)):
        figure.add_hline(
            y=limit / units.GIBIBYTES.value,
            line={"color": COLORS["limit"], "dash": "dash", "width": 1.6},
            annotation={"text": f"limit: {units.size(limit)}", "font": {"color": COLORS["limit"]}},
            annotation_position="bottom right" if n else "top right",
        )
    figure.update_xaxes(title=f"time in the step ({unit.name})", range=[0, timeline.step_s / unit.value])
    figure.update_yaxes(title=f"memory of each device ({units.GIBIBYTES.name})", rangemode="tozero")
    figure.update_layout(showlegend=False)
    return finished(figure, 350)


def fullest_stage(timeline: Timeline) -> int:
    """Returns the stage whose peak is the largest share of its devices' memory; without limits, the largest peak."""
    peaks = [float(np.max(timeline.memory_over_time(n)[1])) for n in range(len(lane_names(timeline)))]
    limits = [stage.memory_limit_bytes for stage in timeline.stages]
    return max(range(len(peaks)), key=lambda n: (peaks[n] / limits[n], peaks[n], -n))


def _thinned(
    times: NDArray[np.float64], num_bytes: NDArray[np.float64], step_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if len(times) <= _POINTS:
        return times, num_bytes
    bins = np.minimum((times / step_s * _POINTS).astype(np.int64), _POINTS - 1)
    first = np.flatnonzero(np.diff(bins, prepend=-1))
    return times[first], np.maximum.reduceat(num_bytes, first)


def entry_of(stage: StagePlan, planned: PlanningResult) -> tuple[int, int] | None:
    """Returns a stage's submesh and config by their index in the search space; None if the space doesn't have them."""
    space = planned.space
    submesh = site_of(stage, space, planned.cluster)
    if submesh is None:
        return None
    for c, config in enumerate(space.configs[submesh]):
        if config and config.shape == tuple(stage.logical_mesh) and _choices(config) == _choices(stage):
            return submesh, c
    return None


def _choices(of: StagePlan | MeshConfig) -> tuple[object, ...]:
    return degrees_text(of), kept_text(of)


def layer_costs(planned: PlanningResult) -> dict[str, Any]:
    """Returns a bar chart of each layer's seconds in one micro-batch: forward, backward and collectives, stacked."""
    table = planned.table
    parts = {"forward": table.compute_forward_s, "backward": table.compute_backward_s, "collective": table.collective_s}
    seconds: dict[str, list[float | None]] = {name: [] for name in parts}
    for stage in planned.plan.stages:
        entry = entry_of(stage, planned)
        costs = {name: None if entry is None else array[:, :, entry[0], entry[1]] for name, array in parts.items()}
        for layer in range(stage.layers[0], stage.layers[1] + 1):
            for name, cost in costs.items():
                seconds[name].append(None if cost is None else float(cost[layer, layer]) / units.MILLISECONDS.value)
    figure = go.Figure()
    for name, values in seconds.items():
        figure.add_bar(
            y=values,
            name="collectives" if name == "collective" else name,
            marker={"color": COLORS[name]},
            hovertemplate=f"layer %{{x}}: {name} %{{y:.4~r}} {units.MILLISECONDS.name}<extra></extra>",
        )
    every = math.ceil(len(planned.plan.stages) / _NUMBERED)
    for n, stage in enumerate(planned.plan.stages):
        first, last = stage.layers
        figure.add_vrect(
            x0=first - 0.5,
            x1=last + 0.5,
            fillcolor="#94a3b8" if n % 2 else "rgba(0,0,0,0)",
            opacity=0.25,
            line_width=0,
            layer="below",
            annotation={"text": str(n) if n % every == 0 else "", "font": {"size": 11}},
            annotation_position="top",
        )
    figure.update_layout(barmode="stack")
    figure.update_xaxes(title="layer (shades: stages)")
    figure.update_yaxes(title=f"one micro-batch ({units.MILLISECONDS.name})")
    return finished(figure, 360)


def lanes(timeline: Timeline) -> dict[str, Any]:
    """Returns a timeline as the data that `timeline.js` draws: each stage's tasks, collectives and sends, and its lane,
    which stages on one submesh share. Starts and ends in seconds are little-endian float32 in base64, of shape (S, B,
    2) for S stages and B micro-batches, for the update (S, 1, 2); NaN where there is no task.
    """
    stages = timeline.stages
    return {
        "stages": timeline.num_stages,
        "lanes": timeline.schedule.num_devices,
        "laneOf": list(timeline.schedule.device_of),
        "microBatches": timeline.num_micro_batches,
        "stepSeconds": timeline.step_s,
        "forward": _packed(timeline.forward_s),
        "backward": _packed(timeline.backward_s),
        **({"weight": _packed(timeline.weight_s)} if timeline.schedule.splits else {}),
        "forwardSend": _packed(timeline.forward_send_s),
        "backwardSend": _packed(timeline.backward_send_s),
        "update": _packed(timeline.update_s),
        "forwardCollective": timeline.collective_shares("forward")[:, 0].tolist(),
        "backwardCollective": timeline.collective_shares("backward")[:, 0].tolist(),
        "lastBackwardCollective": timeline.collective_shares("backward")[:, -1].tolist(),
        "blocking": timeline.blocking,
        "sends": any(stage.forward_send_s or stage.backward_send_s for stage in stages),
    }


def _packed(values: NDArray[np.float64]) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode("ascii")
