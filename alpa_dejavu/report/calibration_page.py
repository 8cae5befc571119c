"""Pages on what was measured of a cluster: seconds over size, with the points, the fits and their 90 % intervals."""

from __future__ import annotations

import html
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.extras import from_extra
from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu._util.range_sums import FloatArray as Array
from alpa_dejavu.calibration import Calibration, MeasuredLink
from alpa_dejavu.calibration.bench import WITHIN, CollectiveProbe, PipelineProbe
from alpa_dejavu.calibration.database import DatabaseData, MeshData, SeriesData, sizes_of
from alpa_dejavu.calibration.fit_database import FittedAlone, errors_of, fit_alone, products_of, spans
from alpa_dejavu.calibration.fit_links import predicted_s
from alpa_dejavu.calibration.measurements import Measurement, kept_measurements
from alpa_dejavu.costs.communication import MEASURED, Group
from alpa_dejavu.costs.communication.learned import LearnedCommunication, interval_ends
from alpa_dejavu.costs.latency import ProductCurve
from alpa_dejavu.problem import Cluster
from alpa_dejavu.report._maps import link_map
from alpa_dejavu.report._page import Section, sections_page
from alpa_dejavu.report._style import add_curve, color_of, finished, log_axis

go: Any = from_extra("plots", "plotly.graph_objects")

__all__ = ["calibration_page", "database_page"]

_BYTES = 2.0 ** np.arange(10, 31)
_HEIGHT, _ROW_HEIGHT = 430, 26
_LEAD = "Crosses are measured, lines are fitted, and bands hold 90 %."
_WIDEST, _POINTS = 1024, 40
"""Over which factor of sizes lines go at least, and at how many sizes they are drawn."""

_Curve = tuple[Array, Array, Array]
"""Mean, lower and upper ends over sizes."""


def calibration_page(calibration: Calibration, measurements: pathlib.Path | None = None) -> str:
    """Returns an HTML page on what a calibration predicts, beside what was measured, if a file of that is given; ""
    where nothing has a curve. ValueError where a measurement is wrong.
    """
    rows = [] if measurements is None else kept_measurements(measurements)
    sections = [
        *_collective_sections(calibration),
        *(section for link in calibration.links for section in _link_sections(link, rows)),
        *_host_sections(calibration),
    ]
    facts = [("date", calibration.date), ("measured", calibration.origin)]
    return sections_page(f"Calibration {calibration.name}", _LEAD, facts, sections) if sections else ""


def database_page(database: DatabaseData) -> str:
    """Returns an HTML page on a converted profiling database, with a chart for each operator, and what fits leave."""
    fitted = {across: fit_alone(database, across) for across in (False, True)}
    pairs = [(mesh, series) for mesh in database["meshes"] for series in mesh["series"]]
    sections = []
    for name in dict.fromkeys(series["name"] for _, series in pairs):
        figure, alike = go.Figure(), [(mesh, series) for mesh, series in pairs if series["name"] == name]
        lines = _add_products(figure, database) if name == "dot" else _add_fits(figure, alike, fitted)
        for n, (mesh, series) in enumerate(alike):
            _add_measured(figure, name, color_of(n), f"measured, {_label(mesh, series)}", series)
        axis = "operations" if name == "dot" else "size"
        title = "matrix products" if name == "dot" else name.replace("_", "-")
        sections.append(Section(title, " ".join(lines), _chart(figure, axis)))
    return sections_page("Profiling database", _LEAD, [("converted from", database["origin"])], sections)


def _example_cluster(calibration: Calibration) -> Cluster | None:
    """Returns a cluster of two hosts of the first known machine type that has a device of the calibration, or None;
    those that Ray's accelerators stand for come first.
    """
    from alpa_dejavu.clusters import known_machines, named_cluster
    from alpa_dejavu.clusters.machine_file import read_machine

    machines = {name: read_machine(name) for name in known_machines()}
    for machine in sorted(machines, key=lambda name: (machines[name].get("accelerator_type") is None, name)):
        device: Mapping[str, Any] | None = machines[machine]["device"]
        if device is not None and device["name"] in calibration.devices:
            return named_cluster(machine, 2)
    return None


def _collective_sections(calibration: Calibration) -> Iterator[Section]:
    """Yields a chart for each collective that a fitted model predicts, on a cluster with the calibration's devices."""
    cluster, model = _example_cluster(calibration), calibration.communication()
    if cluster is None or not isinstance(model, LearnedCommunication):
        return
    devices = cluster.hosts[0].num_devices
    sizes = sorted({2, max(devices // 2, 2), devices})
    groups = {f"{size} in a host": Group(cluster, (0,) * size) for size in sizes}
    if calibration.across is not None:
        groups[f"{2 * devices} in two hosts"] = Group(cluster, (0,) * devices + (1,) * devices)
    for collective in MEASURED:
        figure = go.Figure()
        for n, (name, group) in enumerate(groups.items()):
            lower, upper, _ = model.interval(collective, _BYTES, group)
            _add_fit(figure, name, color_of(n), _BYTES, (model.seconds(collective, _BYTES, group), lower, upper))
        title = f"{collective.replace('_', '-')} on {cluster.name}"
        yield Section(title, "Fitted; by how many devices take part.", _chart(figure))


def _link_sections(measured: MeasuredLink, rows: Sequence[Measurement]) -> Iterator[Section]:
    """Yields charts of a kind of link: of sends from stage to stage, and of each collective that was measured on it."""
    link, where = measured.link, "within hosts" if measured.within else "between hosts"
    ends = " - ".join(dict.fromkeys(measured.devices))
    alike = [row for row in rows if (row.place.where == WITHIN) == measured.within]
    figure, sends = go.Figure(), [row for row in alike if isinstance(row.probe, PipelineProbe)]
    latency_s, rate = link.sending
    reach = np.exp([REACH_90 * _spread(measured, name) for name in ("latency_s", "bytes_per_s")])
    starts, work = latency_s * np.array([1, 1 / reach[0], reach[0]]), np.array([1, 1 / reach[1], reach[1]]) / rate
    mean, lower, upper = starts[:, None] + work[:, None] * _BYTES
    _add_fit(figure, "fit", color_of(0), _BYTES, (mean, lower, upper))
    _add_points(figure, "measured", color_of(0), [(row.probe.num_bytes, row.seconds["send_s"]) for row in sends])
    yield Section(f"Sends {where}", f"{ends}: a tensor from one stage to the next.", _chart(figure))
    probes = {row.probe: row.seconds["run_s"] for row in alike if isinstance(row.probe, CollectiveProbe)}
    factor = float(np.exp(REACH_90 * max(measured.spread.values(), default=0.0)))
    every = [probe.num_bytes for probe in probes] or [1]
    sizes = np.geomspace(min(every), max(*every, _WIDEST * min(every)), _POINTS)
    for name in dict.fromkeys(probe.name for probe in probes):
        figure = go.Figure()
        groups = dict.fromkeys((probe.concurrent, probe.size) for probe in probes if probe.name == name)
        for n, (concurrent, size) in enumerate(sorted(groups)):
            series = [probe for probe in sorted(probes) if (probe.name, probe.concurrent, probe.size) ==
                      (name, concurrent, size)]  # fmt: skip
            per_host = size // 2 if series[0].across else size * concurrent
            probes_between = [CollectiveProbe(name, int(x), size, concurrent, series[0].across) for x in sizes]
            mean = np.array([predicted_s(probe, link, per_host) for probe in probes_between])
            label = f"{concurrent} x {size} devices"
            _add_fit(figure, f"fit, {label}", color_of(n), sizes, (mean, mean / factor, mean * factor))
            points = [(probe.num_bytes, probes[probe]) for probe in series]
            _add_points(figure, f"measured, {label}", color_of(n), points)
        about = f"{ends}: fitted by the alpha-beta model; by groups at a time, and their size."
        yield Section(f"{name.replace('_', '-')} {where}", about, _chart(figure))


def _host_sections(calibration: Calibration) -> Iterator[Section]:
    """Yields maps of the measured rates and latencies from host to host."""
    measured = calibration.host_links
    if measured is None:
        return
    for field, what in (("bytes_per_s", "Rates"), ("latency_s", "Latencies")):
        height = max(_HEIGHT, 120 + _ROW_HEIGHT * len(measured.hosts))
        chart = finished(link_map(measured.hosts, measured.links, field), height)
        yield Section(f"{what} from host to host", "From the row's host to the column's.", chart)


def _spread(measured: MeasuredLink, name: str) -> float:
    """Returns the spread of a figure of sends, which is that of the link where no send was measured."""
    return measured.spread.get(f"send_{name}", measured.spread.get(name, 0.0))


def _add_products(figure: go.Figure, database: DatabaseData) -> list[str]:
    """Adds the curves of products to a figure; returns a sentence on the errors of each."""
    lines = []
    for n, (dtype, (flop, seconds)) in enumerate(products_of(database).items()):
        fastest = float((flop / seconds).max())
        ratio = seconds * fastest / flop
        errors = ProductCurve.left_out_errors(flop, ratio)
        sizes = np.geomspace(flop.min(), flop.max(), _POINTS)
        mean = ProductCurve.fit(flop, ratio).factor(sizes) * sizes / fastest
        low, high = np.exp(interval_ends(errors))
        _add_fit(figure, f"fit, {dtype}", color_of(n), sizes, (mean, mean * low, mean * high))
        lines.append(_errors_line(f"products in {dtype}", "size", errors))
    return lines


def _add_fits(
    figure: go.Figure, pairs: Sequence[tuple[MeshData, SeriesData]], fitted: Mapping[bool, FittedAlone | None]
) -> list[str]:
    """Adds the fits of collectives to a figure; returns a sentence on the errors of each."""
    lines = {}
    for n, (mesh, series) in enumerate(pairs):
        across = spans(series, mesh["mesh"][1])[0] > 1
        model, sizes = fitted[across], np.array([size for size in sizes_of(series) if size > 0], dtype=np.float64)
        if model is None or not len(sizes) or len(series["groups"][0]) < 2:
            continue
        seconds = model.predict(series, mesh["mesh"][1], sizes)
        ends = seconds.mean, seconds.lower, seconds.upper
        _add_fit(figure, f"fit, {_label(mesh, series)}", color_of(n), sizes, ends)
        where = "across hosts" if across else "within hosts"
        lines[where] = _errors_line(f"all collectives {where}", model.left_out, model.model.left_out_errors)
    return list(lines.values())


def _add_measured(figure: go.Figure, operator: str, color: str, label: str, series: SeriesData) -> None:
    """Adds a series of a database to a figure, and beside it what was left out, with the reason."""
    size = "flop" if operator == "dot" else "num_bytes"
    _add_points(figure, label, color, list(zip(sizes_of(series), series["seconds"], strict=True)))
    rows: Sequence[Any] = [row for row in series["left_out"] if row["seconds"] is not None and row["seconds"] > 0]
    points = [(row[size], row["seconds"]) for row in rows]
    _add_points(figure, label.replace("measured", "left out", 1), color, points, [row["reason"] for row in rows])


def _errors_line(what: str, left_out: str, errors: Any) -> str:
    figures = errors_of(errors)
    how = f"each {left_out} left out in turn" if left_out else "nothing left out"
    return f"{what}: {100 * figures['mape']:.1f} % off, median {100 * figures['median_ape']:.1f} %, {how}."


def _label(mesh: MeshData, series: SeriesData) -> str:
    hosts, devices = mesh["mesh"]
    groups = series["groups"]
    size = f", {len(groups)} x {len(groups[0])}" if groups else ""
    return f"{hosts}x{devices}{size}, {series['dtype']}"


def _add_fit(figure: go.Figure, name: str, color: str, sizes: Array, curve: _Curve) -> None:
    mean, lower, upper = (part.tolist() for part in curve)
    add_curve(figure, html.escape(name), sizes.tolist(), mean, (lower, upper), color=color)


def _add_points(
    figure: go.Figure, name: str, color: str, points: Sequence[tuple[float, float]], reasons: Sequence[str] = ()
) -> None:
    """Adds measured points to a figure, crosses of their curve's colour; open circles where a reason left them out."""
    if not points:
        return
    sizes, seconds = zip(*points, strict=True)
    marker = {"symbol": "circle-open" if reasons else "x-thin", "size": 9, "color": color}
    figure.add_scatter(
        x=sizes, y=seconds, mode="markers", name=html.escape(name), text=list(map(html.escape, reasons)) or None,
        marker=marker | {"line": {"color": color, "width": 2}},
    )  # fmt: skip


def _chart(figure: go.Figure, across: str = "size") -> dict[str, Any]:
    """Returns a chart of seconds over sizes, in bytes or operations, on logarithmic axes whose ticks have units."""
    text: Callable[[float], str] = units.flop if across == "operations" else units.traffic
    sizes, seconds = ([float(x) for trace in figure.data for x in trace[axis]] for axis in "xy")
    figure.update_xaxes(title=across, **log_axis(sizes, text, 10.0 if across == "operations" else 32.0))
    figure.update_yaxes(title="time", **log_axis(seconds, units.seconds))
    return finished(figure, _HEIGHT)
