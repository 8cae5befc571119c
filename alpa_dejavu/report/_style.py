"""The style that all charts have in common: their colours, fonts and margins."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

COLORS = {
    "forward": "#5b8def",
    "backward": "#1f9e89",
    "collective": "#f2a33a",
    "send": "#b05cc6",
    "update": "#6b7280",
    "bubble": "#eef1f5",
    "limit": "#d1495b",
}


def finished(figure: go.Figure, height: int) -> dict[str, Any]:
    """Returns a plotly figure as plain JSON data, in the report page's style and of the given height."""
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 70, "r": 20, "t": 40, "b": 55},
        font={"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
        hoverlabel={"align": "left"},
    )
    made: dict[str, Any] = json.loads(figure.to_json())
    made["layout"].pop("template", None)
    return made


def stage_colors(count: int) -> list[str]:
    """Returns a colour for each stage, from the first to the last."""
    return list(sample_colorscale("Viridis", [0.9 * n / max(count - 1, 1) for n in range(count)]))
