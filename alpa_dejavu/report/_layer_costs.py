"""The chart of the model's layers: what each costs on the mesh of its stage."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from alpa_dejavu._util import units
from alpa_dejavu.clusters.placement import site_of
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import StagePlan
from alpa_dejavu.report._style import COLORS, finished


def entry_of(stage: StagePlan, planned: PlanningResult) -> tuple[int, int] | None:
    """Returns a stage's submesh and config by their index in the search space; None if the space doesn't have them."""
    space = planned.space
    submesh = site_of(stage, space, planned.cluster)
    if submesh is None:
        return None
    for c, config in enumerate(space.configs[submesh]):
        if config and (config.shape, config.remat, config.zero) == (stage.logical_mesh, stage.remat, stage.zero):
            return submesh, c
    return None


def layer_costs(planned: PlanningResult) -> dict[str, Any]:
    """Returns a bar chart of each layer's seconds in one micro-batch: forward, backward and collectives, stacked."""
    table = planned.table
    parts = {
        "forward": table.compute_forward_s,
        "backward": table.compute_backward_s,
        "collective": table.collective_s,
    }
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
            name=name,
            marker={"color": COLORS[name]},
            hovertemplate=f"layer %{{x}}: {name} %{{y:.4g}} {units.MILLISECONDS.name}<extra></extra>",
        )
    for n, stage in enumerate(planned.plan.stages):
        first, last = stage.layers
        figure.add_vrect(
            x0=first - 0.5,
            x1=last + 0.5,
            fillcolor="#94a3b8" if n % 2 else "#e2e8f0",
            opacity=0.25,
            line_width=0,
            layer="below",
            annotation={"text": str(n), "font": {"size": 11, "color": "#52606d"}},
            annotation_position="top",
        )
    legend = {"traceorder": "normal", "orientation": "h", "y": 1.06, "yanchor": "bottom", "x": 0}
    figure.update_layout(barmode="stack", legend=legend)
    figure.update_xaxes(title="layer (shades: stages)")
    figure.update_yaxes(title=f"one micro-batch ({units.MILLISECONDS.name})")
    made = finished(figure, 390)
    made["layout"]["margin"]["t"] = 70
    return made
