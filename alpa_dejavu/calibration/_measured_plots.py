"""Pictures of what `calibrate` measured, beside what its fit says of it: a page for each program and collective."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.calibration._calibration import Calibration, MeasuredLink
from alpa_dejavu.calibration._fit_links import predicted_s
from alpa_dejavu.calibration.bench import WITHIN, Collective
from alpa_dejavu.calibration.measurements import Measurement, kept_measurements
from alpa_dejavu.calibration.operators import Program, operators

__all__ = ["measured_pages"]



def measured_pages(calibration: Calibration, path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields a page for each program and collective that was measured, with the measurements beside what a fit says of
    them: a file name without ending, and a plotly figure.

    Args:
        calibration: the calibration that was fitted to the measurements.
        path: the file in which `alpa-dejavu calibrate` keeps the measurements.

    Raises:
        ValueError: a line of the file is wrong; says which.
    """
    rows = kept_measurements(path)
    for device in calibration.devices:
        found = [row for row in rows if isinstance(row.probe, Program) and row.place.where == device]
        for name in dict.fromkeys(_name(row) for row in found):
            chosen = [row for row in found if _name(row) == name]
            fitted = [_of_program(calibration, device, row) for row in chosen]
            yield f"program-{name}-{device}", _figure(f"{name} on {device}", "program", chosen, fitted)
    for link in calibration.links:
        found = [row for row in rows if isinstance(row.probe, Collective)]
        found = [row for row in found if (row.place.where == WITHIN) == link.within]
        for name in dict.fromkeys(_name(row) for row in found):
            chosen = [row for row in found if _name(row) == name]
            fitted = [_of_collective(link, row) for row in chosen]
            title = f"{name.replace('_', '-')} {'within' if link.within else 'across'} hosts"
            yield title.replace(" ", "-"), _figure(title, "collective", chosen, fitted)


def _name(row: Measurement) -> str:
    assert isinstance(row.probe, (Program, Collective)), "only these are drawn"
    return row.probe.name


def _of_program(calibration: Calibration, device: str, row: Measurement) -> tuple[float, float]:
    """Seconds, and one standard deviation of their logarithm: operators of a device err together."""
    assert isinstance(row.probe, Program), "programs are measured on devices"
    latency = calibration.latency().predict(operators(row.probe), calibration.devices[device])
    return latency.total_s, float(np.log1p(latency.spread_s.sum() / latency.total_s))


def _of_collective(link: MeasuredLink, row: Measurement) -> tuple[float, float]:
    """The same of a collective, whose latency and rate err together."""
    assert isinstance(row.probe, Collective), "collectives go over links"
    devices = row.probe.size // 2 if row.probe.across else row.probe.size * row.probe.concurrent
    return predicted_s(row.probe, link.link, devices), max(link.spread.values(), default=0.0)


def _figure(title: str, axis: str, rows: Sequence[Measurement], fitted: Sequence[tuple[float, float]]) -> Any:
    """Measured beside fitted, the shortest first."""
    import plotly.graph_objects as go

    order = np.argsort([mean for mean, _ in fitted])
    names = [str(rows[n].probe) for n in order]
    mean, spread = np.array([fitted[n] for n in order]).T
    upper, lower = mean * np.exp(REACH_90 * spread), mean * np.exp(-REACH_90 * spread)
    error: Mapping[str, Any] = {"symmetric": False, "array": upper - mean, "arrayminus": mean - lower}
    figure = go.Figure()
    figure.add_scatter(x=names, y=mean, error_y=error, mode="markers", name="fit", marker={"color": "#4269d0"})
    measured = [rows[n].seconds["run_s"] for n in order]
    figure.add_scatter(x=names, y=measured, mode="markers", name="measured", marker={"color": "#ff725c", "symbol": "x"})
    figure.update_layout(
        title=f"{title}: measured, and the fit with the interval that holds 90 %",
        xaxis={"title": axis},
        yaxis={"title": "seconds", "type": "log"},
    )
    return figure
