"""Pictures of the links from host to host: a map of rates and one of latencies, from rows to columns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from alpa_dejavu.calibration._host_links import HostLinks
from alpa_dejavu.problem import Link

__all__ = ["matrix_pages"]

_NUMBERED_HOSTS = 12
"""Up to so many hosts there is room for figures in the map."""


def matrix_pages(found: HostLinks, name: str) -> Iterator[tuple[str, Any]]:
    """Names and figures of the pages; a title has the calibration's name."""
    rates = [[None if link is None else link.bytes_per_s for link in row] for row in found.links]
    latencies = [[None if link is None else link.latency_s for link in row] for row in found.links]
    yield "host-rates", _map(found, f"{name}: bytes per second from host (row) to host (column)", rates, "bytes/s")
    yield "host-latencies", _map(found, f"{name}: latency from host (row) to host (column)", latencies, "seconds")


def _map(found: HostLinks, title: str, values: list[list[float | None]], unit: str) -> Any:
    import plotly.graph_objects as go

    few = len(found.hosts) <= _NUMBERED_HOSTS
    shown = go.Heatmap(
        x=found.hosts,
        y=found.hosts,
        # Slow links differ from fast ones by factors.
        z=[[None if value is None or value <= 0 else math.log10(value) for value in row] for row in values],
        text=[[_text(value) for value in row] for row in values],
        customdata=[[_shares(link) for link in row] for row in found.links],
        texttemplate="%{text}" if few else None,
        hovertemplate="%{y} to %{x}: %{text} " + unit + "%{customdata}<extra></extra>",
        colorscale="Viridis" if unit == "bytes/s" else "Viridis_r",
        colorbar={"title": f"log10 of {unit}"},
        hoverongaps=False,
    )
    figure = go.Figure(shown)
    figure.update_layout(
        title=title,
        xaxis={"title": "to", "type": "category"},
        yaxis={"title": "from", "type": "category", "autorange": "reversed"},
    )
    return figure


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _shares(link: Link | None) -> str:
    return "" if link is None or not link.shares else f", over {', '.join(link.shares)}"
