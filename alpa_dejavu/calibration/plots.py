"""Pictures of a calibration: seconds over size with 90 % intervals, measurements, and maps of links between hosts."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu._util.range_sums import FloatArray as Array
from alpa_dejavu.calibration._calibration import Calibration
from alpa_dejavu.calibration._fit_links import predicted_s
from alpa_dejavu.calibration.bench import WITHIN, CollectiveProbe
from alpa_dejavu.calibration.measured_hosts import HostLinks
from alpa_dejavu.calibration.measurements import Measurement, kept_measurements
from alpa_dejavu.calibration.parts import MeasuredLink
from alpa_dejavu.clusters.link_map import link_map
from alpa_dejavu.costs.communication import MEASURED, Group
from alpa_dejavu.problem import Cluster

_BYTES = 2.0 ** np.arange(10, 31)
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e")

Lines = dict[str, tuple[Array, Array, Array]]
"""Mean, lower and upper end of each curve of a page, by what it stands for."""


def draw(
    calibration: Calibration, folder: pathlib.Path, measurements: pathlib.Path | None = None
) -> list[pathlib.Path]:
    """Draws a calibration's predicted seconds, and those of a file of measurements, into a folder; returns the files.
    ValueError where they can't be written, or a measurement is wrong.
    """
    curves = (
        (name, _figure(f"{calibration.name}: {title}", axis, sizes, lines))
        for name, title, axis, sizes, lines in _pages(calibration)
    )
    links = calibration.host_links
    maps = () if links is None else matrix_pages(links, calibration.name)
    measured = () if measurements is None else _measured_pages(calibration, measurements)
    return write_pages(folder, itertools.chain(curves, maps, measured))


def _pages(calibration: Calibration) -> Iterator[tuple[str, str, str, Array, Lines]]:
    """File, title, what is across, its values, and the curves."""
    cluster = example_cluster_of(calibration)
    if cluster is not None and calibration.within is not None:
        for collective in MEASURED:
            title = f"{collective.replace('_', '-')} on {cluster.name}"
            yield collective.replace("_", "-"), title, "bytes", _BYTES, _collective(calibration, collective, cluster)
    if calibration.links:
        lines = dict(_link(link) for link in calibration.links)
        yield "links", "one message over each kind of link", "bytes", _BYTES, lines


def example_cluster_of(calibration: Calibration) -> Cluster | None:
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


def _collective(calibration: Calibration, collective: str, cluster: Cluster) -> Lines:
    from alpa_dejavu.costs.communication.learned import LearnedCommunication

    model = calibration.communication()
    assert isinstance(model, LearnedCommunication), "pages of collectives are drawn where there is a model"
    devices = cluster.hosts[0].num_devices
    sizes = sorted({2, max(devices // 2, 2), devices})
    groups = {f"{size} in a host": Group(cluster, (0,) * size) for size in sizes}
    if calibration.across is not None:
        groups[f"{2 * devices} in two hosts"] = Group(cluster, (0,) * devices + (1,) * devices)
    lines = {}
    for name, group in groups.items():
        lower, upper, _ = model.interval(collective, _BYTES, group)
        lines[name] = model.seconds(collective, _BYTES, group), lower, upper
    return lines


def _link(measured: MeasuredLink) -> tuple[str, tuple[Array, Array, Array]]:
    """A message by the alpha-beta model, with latency and rate both at an end of their intervals."""
    link, spread = measured.link, measured.spread
    of_latency, of_rate = (np.exp(REACH_90 * spread.get(name, 0.0)) for name in ("latency_s", "bytes_per_s"))
    start, work = link.latency_s, _BYTES / link.bytes_per_s
    ends = start / of_latency + work / of_rate, start * of_latency + work * of_rate
    where = "in a host" if measured.within else "between hosts"
    return f"{' - '.join(measured.devices)}, {where}", (start + work, *ends)


def _figure(title: str, axis: str, sizes: Array, lines: Lines) -> Any:
    import plotly.graph_objects as go

    figure = go.Figure()
    add_lines(figure, sizes, lines)
    figure.update_layout(
        title=f"{title}: fit, and the interval that holds 90 %",
        xaxis={"title": axis, "type": "log"},
        yaxis={"title": "seconds", "type": "log"},
    )
    return figure


def _measured_pages(calibration: Calibration, path: pathlib.Path) -> Iterator[tuple[str, Any]]:
    """Yields a page for each collective that was measured, beside what a fit says of it: its name, and a figure."""
    rows = kept_measurements(path)
    for link in calibration.links:
        within = [row for row in rows if (row.place.where == WITHIN) == link.within]
        names = (row.probe.name for row in within if isinstance(row.probe, CollectiveProbe))
        for name in dict.fromkeys(names):
            alike = [row for row in within if isinstance(row.probe, CollectiveProbe) and row.probe.name == name]
            title = f"{name.replace('_', '-')} {'within' if link.within else 'across'} hosts"
            yield title.replace(" ", "-"), _measured_figure(title, link, alike)


def _measured_figure(title: str, link: MeasuredLink, rows: Sequence[Measurement]) -> Any:
    """Measured beside fitted, the shortest first; latency and rate of a link err together."""
    import plotly.graph_objects as go

    probes = [row.probe for row in rows if isinstance(row.probe, CollectiveProbe)]
    per_host = [probe.size // 2 if probe.across else probe.size * probe.concurrent for probe in probes]
    mean = np.array([predicted_s(probe, link.link, n) for probe, n in zip(probes, per_host, strict=True)])
    order = np.argsort(mean)
    names, mean = [str(probes[n]) for n in order], mean[order]
    factor = np.exp(REACH_90 * max(link.spread.values(), default=0.0))
    error: Mapping[str, Any] = {"symmetric": False, "array": mean * factor - mean, "arrayminus": mean - mean / factor}
    figure = go.Figure()
    figure.add_scatter(x=names, y=mean, error_y=error, mode="markers", name="fit", marker={"color": "#4269d0"})
    seconds = [rows[n].seconds["run_s"] for n in order]
    figure.add_scatter(x=names, y=seconds, mode="markers", name="measured", marker={"color": "#ff725c", "symbol": "x"})
    figure.update_layout(
        title=f"{title}: measured, and the fit with the interval that holds 90 %",
        xaxis={"title": "collective"},
        yaxis={"title": "seconds", "type": "log"},
    )
    return figure


def add_lines(figure: Any, sizes: Array, lines: Lines) -> None:
    """Adds curves over sizes to a figure of plotly, each with its interval in the same colour, seen through."""
    for name, (mean, lower, upper) in lines.items():
        colour = _COLOURS[len(figure.data) // 3 % len(_COLOURS)]
        band = {"mode": "lines", "line": {"width": 0}, "legendgroup": name, "showlegend": False, "hoverinfo": "skip"}
        figure.add_scatter(x=sizes, y=lower, **band)
        red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
        seen_through = f"rgba({red}, {green}, {blue}, 0.2)"
        figure.add_scatter(x=sizes, y=upper, fill="tonexty", fillcolor=seen_through, **band)
        figure.add_scatter(x=sizes, y=mean, mode="lines", line={"color": colour}, name=name, legendgroup=name)


def matrix_pages(host_links: HostLinks, name: str) -> Iterator[tuple[str, Any]]:
    """Yields maps of the measured rates and latencies from host to host: a page's name, and a plotly figure."""
    for page, figure, what in (
        ("host-rates", "bytes_per_s", "bytes per second"),
        ("host-latencies", "latency_s", "latency"),
    ):
        shown = link_map(host_links.hosts, host_links.links, figure)
        shown.update_layout(title=f"{name}: {what} from host (row) to host (column)")
        yield page, shown


def write_pages(folder: pathlib.Path, pages: Iterable[tuple[str, Any]]) -> list[pathlib.Path]:
    """Writes plotly figures, each with its file name without ending, as pages into a folder; returns their files."""
    from plotly.offline import get_plotlyjs

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{folder} can't be made: {error.strerror}; give another folder for the pictures") from None
    written = []
    for name, figure in pages:
        written.append(folder / f"{name}.html")
        write_whole(written[-1], figure.to_html(include_plotlyjs="directory"))
    if written:
        write_whole(folder / "plotly.min.js", get_plotlyjs())
    return written
