"""Pictures of a converted database: seconds over size, a page for each operator; what was left out is crossed."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from alpa_dejavu.calibration.database import Database, MeshProfile, Series
from alpa_dejavu.calibration.plots import write_pages

__all__ = ["draw_database"]


def draw_database(found: Database, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws the measurements of Alpa's profiler as seconds over sizes, a page for each operator; returns the pages'
    files in the folder.

    Raises:
        ValueError: they can't be written.
    """
    pairs = [(mesh, one) for mesh in found.meshes for one in mesh.series]
    return write_pages(
        folder,
        (
            (
                f"database-{name.replace('_', '-')}",
                _figure(f"{found.origin}: {name}", name, [(mesh, one) for mesh, one in pairs if one.name == name]),
            )
            for name in dict.fromkeys(one.name for _, one in pairs)
        ),
    )


def _figure(title: str, name: str, pairs: Sequence[tuple[MeshProfile, Series]]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for mesh, one in pairs:
        size = f", {len(one.groups)} x {len(one.groups[0])}" if one.groups else ""
        label = f"{mesh.hosts}x{mesh.devices_per_host}{size}, {one.dtype}"
        figure.add_scatter(x=one.sizes, y=one.seconds, name=label, mode="lines+markers")
        out = [(size, seconds) for size, seconds, _ in one.left_out if seconds is not None and seconds > 0]
        if out:
            reasons = [why for _, seconds, why in one.left_out if seconds is not None and seconds > 0]
            figure.add_scatter(
                x=[size for size, _ in out], y=[seconds for _, seconds in out], text=reasons, mode="markers",
                name=f"{label}, left out", marker={"symbol": "x"},
            )  # fmt: skip
    axis = "operations" if name == "dot" else "bytes"
    figure.update_layout(title=title, template="plotly_white")
    figure.update_xaxes(type="log", title=axis)
    figure.update_yaxes(type="log", title="seconds")
    return figure
