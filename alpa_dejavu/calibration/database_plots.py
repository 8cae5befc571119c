"""Pictures of a converted database: measured and fitted seconds over size, a page for each operator; what was left out
is crossed.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from alpa_dejavu.calibration._fit_database import (
    FittedAlone,
    crosses_hosts,
    errors_of,
    fit_alone,
    products_of,
)
from alpa_dejavu.calibration.database import Database, MeshProfile, Series
from alpa_dejavu.calibration.plots import add_lines, write_pages
from alpa_dejavu.costs.latency.product_curve import ProductCurve
from alpa_dejavu.costs.left_out_errors import interval_ends

__all__ = ["draw_database"]


def draw_database(found: Database, folder: pathlib.Path) -> list[pathlib.Path]:
    """Draws the measurements of Alpa's profiler as seconds over sizes, with what is fitted to them, its 90 % interval
    and its error on what was left out, a page for each operator; returns the pages' files in the folder.

    Raises:
        ValueError: they can't be written.
    """
    pairs = [(mesh, one) for mesh in found.meshes for one in mesh.series]
    fitted = {across: fit_alone(found, across) for across in (False, True)}

    def pages() -> Iterator[tuple[str, Any]]:
        for name in dict.fromkeys(one.name for _, one in pairs):
            alike = [(mesh, one) for mesh, one in pairs if one.name == name]
            figure = _measured(name, alike)
            said = _add_products(figure, found) if name == "dot" else _add_collectives(figure, alike, fitted)
            title = "<br>".join([f"{found.origin}: {name}", *said])
            figure.update_layout(title=title, template="plotly_white")
            yield f"database-{name.replace('_', '-')}", figure

    return write_pages(folder, pages())


def _measured(name: str, pairs: Sequence[tuple[MeshProfile, Series]]) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    for mesh, one in pairs:
        label = _label(mesh, one)
        figure.add_scatter(x=one.sizes, y=one.seconds, name=label, mode="markers")
        out = [(size, seconds, why) for size, seconds, why in one.left_out if seconds is not None and seconds > 0]
        if out:
            sizes, took, reasons = zip(*out, strict=True)
            figure.add_scatter(
                x=sizes, y=took, text=reasons, mode="markers", name=f"{label}, left out", marker={"symbol": "x"}
            )
    figure.update_xaxes(type="log", title="operations" if name == "dot" else "bytes")
    figure.update_yaxes(type="log", title="seconds")
    return figure


def _add_products(figure: Any, found: Database) -> list[str]:
    """Adds the curves of products to a figure; returns what is to be said of each."""
    said = []
    for dtype, (flop, seconds) in products_of(found).items():
        fastest = float((flop / seconds).max())
        ratio = seconds * fastest / flop
        errors = ProductCurve.left_out_errors(flop, ratio)
        sizes = np.geomspace(flop.min(), flop.max(), 50)
        mean = ProductCurve.fit(flop, ratio).factor(sizes) * sizes / fastest
        low, high = np.exp(interval_ends(errors))
        add_lines(figure, sizes, {f"fit, {dtype}": (mean, mean * low, mean * high)})
        said.append(_said(f"products in {dtype}", "size", errors))
    return said


def _add_collectives(
    figure: Any, pairs: Sequence[tuple[MeshProfile, Series]], fitted: dict[bool, FittedAlone | None]
) -> list[str]:
    """Adds the fits of collectives to a figure; returns what is to be said of each."""
    said = {}
    for mesh, one in pairs:
        across = crosses_hosts(one, mesh.devices_per_host)
        model, sizes = fitted[across], np.array([size for size in one.sizes if size > 0])
        if model is None or not len(sizes) or len(one.groups[0]) < 2:
            continue
        seconds = model.predict(one, mesh.devices_per_host, sizes)
        add_lines(figure, sizes, {f"fit, {_label(mesh, one)}": (seconds.mean, seconds.lower, seconds.upper)})
        where = "across hosts" if across else "within hosts"
        said[where] = _said(f"all collectives {where}", model.left_out, model.model.left_out_errors)
    return list(said.values())


def _said(what: str, left_out: str, errors: Any) -> str:
    figures = errors_of(errors)
    how = f"each {left_out} left out in turn" if left_out else "nothing left out"
    return f"{what}: {100 * figures['mape']:.1f} % off, median {100 * figures['median_ape']:.1f} %, {how}"


def _label(mesh: MeshProfile, one: Series) -> str:
    size = f", {len(one.groups)} x {len(one.groups[0])}" if one.groups else ""
    return f"{mesh.hosts}x{mesh.devices_per_host}{size}, {one.dtype}"
