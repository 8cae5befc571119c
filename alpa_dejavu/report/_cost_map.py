"""The cost table as a heat map: for each submesh all ranges of layers, and which of them are the plan's stages."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import plotly.graph_objects as go

from alpa_dejavu._util import units
from alpa_dejavu.clusters.placement import site_of
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.report._charts import COLORS, finished


def cost_map(planned: PlanningResult) -> dict[str, Any]:
    """Returns a chart of a plan's cost table: for each submesh a heat map of the seconds that a stage of any range of
    layers takes with its cheapest config.

    The submesh with most of the plan's stages is shown first, and the plan's stages are marked. The chart is plotly's
    JSON data.
    """
    submeshes, stages = planned.space.submeshes, planned.plan.stages
    places = [site_of(stage, planned.space, planned.cluster) for stage in stages]
    used = collections.Counter(places)
    shown = max(range(len(submeshes)), key=lambda s: (used[s], -s))
    figure = go.Figure()
    for s in range(len(submeshes)):
        figure.add_heatmap(visible=s == shown, **_map(planned, s))
        mine = [(n, stage) for n, stage in enumerate(stages) if places[n] == s]
        figure.add_scatter(visible=s == shown, **_marks(mine, COLORS["limit"], "square-open", "this submesh"))
    others = list(enumerate(stages))
    figure.add_scatter(**_marks(others, "#7f8a99", "circle-open", "any submesh"))
    buttons = [
        {
            "label": f"{submesh.num_hosts} x {submesh.devices_per_host}"
            + _of_hosts(planned, s)
            + (" (in the plan)" if used[s] else ""),
            "method": "update",
            "args": [{"visible": [n // 2 == s for n in range(2 * len(submeshes))] + [True]}],
        }
        for s, submesh in enumerate(submeshes)
    ]
    menu = {"buttons": buttons, "active": shown, "x": 0.0, "xanchor": "left", "y": 1.16, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[menu], legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"})
    figure.update_xaxes(title="last layer", constrain="domain", zeroline=False)
    figure.update_yaxes(title="first layer", autorange="reversed", scaleanchor="x", constrain="domain", zeroline=False)
    made = finished(figure, 620)
    made["layout"]["margin"]["t"] = 130
    return made


def _map(planned: PlanningResult, submesh: int) -> dict[str, Any]:
    table, configs = planned.table, planned.space.configs[submesh]
    costs = table.compute_costs_s[:, :, submesh, :]
    best = np.argmin(costs, axis=2)
    least = np.take_along_axis(costs, best[..., None], axis=2)[..., 0]
    named = np.array([_config(config) for config in configs])
    return {
        "z": [[None if np.isinf(x) else x / units.MILLISECONDS.value for x in row] for row in least.tolist()],
        "text": named[best].tolist(),
        "colorscale": "YlGnBu",
        "colorbar": {"title": {"text": units.MILLISECONDS.name}, "thickness": 14},
        "hoverongaps": False,
        "hovertemplate": f"layers %{{y}} to %{{x}}: %{{z:.4g}} {units.MILLISECONDS.name}<br>%{{text}}<extra></extra>",
    }


def _of_hosts(planned: PlanningResult, submesh: int) -> str:
    """Which hosts stand for those of a submesh, where hosts are unlike."""
    hosts = () if planned.space.hosts is None else planned.space.hosts[submesh]
    names = [planned.cluster.hosts[host].name for host in hosts]
    return "" if not names else f" like {', '.join(names[:4])}" + (" ..." if len(names) > 4 else "")


def _config(config: Any) -> str:
    if config is None:
        return "no config"
    logical = " x ".join(map(str, config.shape))
    offload = f", offload {config.offload.text}" if config.offload.any else ""
    return f"logical mesh {logical}, remat {config.remat}, ZeRO {config.zero}{offload}"


def _marks(stages: list[tuple[int, Any]], color: str, symbol: str, where: str) -> dict[str, Any]:
    size = 15 if symbol == "square-open" else 8
    return {
        "x": [stage.layers[1] for _, stage in stages],
        "y": [stage.layers[0] for _, stage in stages],
        "mode": "markers",
        "marker": {"symbol": symbol, "color": color, "size": size, "line": {"width": 2}},
        "text": [f"stage {n}: layers {stage.layers[0]} to {stage.layers[1]}" for n, stage in stages],
        "name": f"the plan's stages, {where}",
        "hovertemplate": "%{text}<extra></extra>",
    }
