"""A map of the links from host to host: each link a field, from its row's host to its column's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from alpa_dejavu.problem import Link

_NUMBERED_HOSTS = 12
"""Up to so many hosts there is room for figures in the map."""
_UNITS = {"bytes_per_s": "bytes/s", "latency_s": "seconds"}


def link_map(hosts: Sequence[str], links: Sequence[Sequence[Link | None]], figure: str = "bytes_per_s") -> Any:
    """Returns a plotly heatmap of a field of the links from host to host, "bytes_per_s" or "latency_s", where
    `links[a][b]` goes from host a to b; None is a blank field. Colours go by logarithms, since slow links differ from
    fast ones by factors.
    """
    import plotly.graph_objects as go

    values = [[None if link is None else float(getattr(link, figure)) for link in row] for row in links]
    unit = _UNITS[figure]
    shown = go.Heatmap(
        x=list(hosts),
        y=list(hosts),
        z=[[None if value is None or value <= 0 else math.log10(value) for value in row] for row in values],
        text=[["" if value is None else f"{value:.3g}" for value in row] for row in values],
        customdata=[
            [f", over {', '.join(link.shares)}" if link and link.shares else "" for link in row] for row in links
        ],
        texttemplate="%{text}" if len(hosts) <= _NUMBERED_HOSTS else None,
        hovertemplate="%{y} to %{x}: %{text} " + unit + "%{customdata}<extra></extra>",
        colorscale="Viridis" if figure == "bytes_per_s" else "Viridis_r",
        colorbar={"title": f"log10 of {unit}"},
        hoverongaps=False,
    )
    chart = go.Figure(shown)
    chart.update_layout(
        xaxis={"title": "to", "type": "category"}, yaxis={"title": "from", "type": "category", "autorange": "reversed"}
    )
    return chart
