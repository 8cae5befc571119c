"""Pictures of a converted database: measured and fitted seconds over size by operator; what was left out is crossed."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from alpa_dejavu.calibration._fit_database import FittedAlone, errors_of, fit_alone, products_of, spans
from alpa_dejavu.calibration.database import DatabaseData, MeshData, SeriesData, sizes_of
from alpa_dejavu.calibration.plots import add_lines, write_pages
from alpa_dejavu.costs.communication.learned import interval_ends
from alpa_dejavu.costs.latency import ProductCurve


def draw_database(database: DatabaseData, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws seconds over sizes, with fits, 90 % intervals and errors, by operator; returns the pages' files."""
    pairs = [(mesh, series) for mesh in database["meshes"] for series in mesh["series"]]
    fitted = {across: fit_alone(database, across) for across in (False, True)}

    def pages() -> Iterator[tuple[str, Any]]:
        for name in dict.fromkeys(series["name"] for _, series in pairs):
            alike = [(mesh, series) for mesh, series in pairs if series["name"] == name]
            figure = _measured(name, alike)
            lines = _add_products(figure, database) if name == "dot" else _add_collectives(figure, alike, fitted)
            title = "<br>".join([f"{database['origin']}: {name}", *lines])
            figure.update_layout(title=title, template="plotly_white")
            yield f"database-{name.replace('_', '-')}", figure

    return write_pages(folder, pages())


def _measured(name: str, pairs: Sequence[tuple[MeshData, SeriesData]]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    size = "flop" if name == "dot" else "num_bytes"
    for mesh, series in pairs:
        label = _label(mesh, series)
        figure.add_scatter(x=sizes_of(series), y=series["seconds"], name=label, mode="markers")
        rows: Sequence[Any] = [row for row in series["left_out"] if row["seconds"] is not None and row["seconds"] > 0]
        if rows:
            sizes, took, reasons = zip(*((row[size], row["seconds"], row["reason"]) for row in rows), strict=True)
            figure.add_scatter(
                x=sizes, y=took, text=reasons, mode="markers", name=f"{label}, left out", marker={"symbol": "x"}
            )
    figure.update_xaxes(type="log", title="operations" if name == "dot" else "bytes")
    figure.update_yaxes(type="log", title="seconds")
    return figure


def _add_products(figure: Any, database: DatabaseData) -> list[str]:
    """Adds the curves of products to a figure; returns a line on the errors of each."""
    lines = []
    for dtype, (flop, seconds) in products_of(database).items():
        fastest = float((flop / seconds).max())
        ratio = seconds * fastest / flop
        errors = ProductCurve.left_out_errors(flop, ratio)
        sizes = np.geomspace(flop.min(), flop.max(), 50)
        mean = ProductCurve.fit(flop, ratio).factor(sizes) * sizes / fastest
        low, high = np.exp(interval_ends(errors))
        add_lines(figure, sizes, {f"fit, {dtype}": (mean, mean * low, mean * high)})
        lines.append(_errors_line(f"products in {dtype}", "size", errors))
    return lines


def _add_collectives(
    figure: Any, pairs: Sequence[tuple[MeshData, SeriesData]], fitted: dict[bool, FittedAlone | None]
) -> list[str]:
    """Adds the fits of collectives to a figure; returns a line on the errors of each."""
    lines = {}
    for mesh, series in pairs:
        across = spans(series, mesh["mesh"][1])[0] > 1
        model, sizes = fitted[across], np.array([size for size in sizes_of(series) if size > 0], dtype=np.float64)
        if model is None or not len(sizes) or len(series["groups"][0]) < 2:
            continue
        seconds = model.predict(series, mesh["mesh"][1], sizes)
        add_lines(figure, sizes, {f"fit, {_label(mesh, series)}": (seconds.mean, seconds.lower, seconds.upper)})
        where = "across hosts" if across else "within hosts"
        lines[where] = _errors_line(f"all collectives {where}", model.left_out, model.model.left_out_errors)
    return list(lines.values())


def _errors_line(what: str, left_out: str, errors: Any) -> str:
    figures = errors_of(errors)
    how = f"each {left_out} left out in turn" if left_out else "nothing left out"
    return f"{what}: {100 * figures['mape']:.1f} % off, median {100 * figures['median_ape']:.1f} %, {how}"


def _label(mesh: MeshData, series: SeriesData) -> str:
    hosts, devices = mesh["mesh"]
    groups = series["groups"]
    size = f", {len(groups)} x {len(groups[0])}" if groups else ""
    return f"{hosts}x{devices}{size}, {series['dtype']}"
