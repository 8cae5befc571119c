"""Pictures of a calibration: seconds over size with their 90 % intervals, a page for each collective, and maps
of the links from host to host.

A calibration holds no measurements, so none are drawn: how far off the fit was of them is in its `fits`.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu._util.normal import REACH_90
from alpa_dejavu.calibration._calibration import Calibration, MeasuredLink
from alpa_dejavu.calibration._host_links import HostLinks
from alpa_dejavu.calibration._measured_plots import measured_pages
from alpa_dejavu.clusters.link_map import link_map
from alpa_dejavu.costs.communication import MEASURED, Group
from alpa_dejavu.costs.left_out_errors import Array
from alpa_dejavu.problem import Cluster

_BYTES = 2.0 ** np.arange(10, 31)
_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e")

Lines = dict[str, tuple[Array, Array, Array]]
"""Mean, lower and upper end of each curve of a page, by what it stands for."""


def draw(
    calibration: Calibration, folder: pathlib.Path, measurements: pathlib.Path | None = None
) -> list[pathlib.Path]:
    """Draws the seconds that a calibration predicts, and those that were measured for it, as pages; returns their files
    in the folder.

    Args:
        calibration: the calibration whose fits are drawn.
        folder: the folder of the pages, which is made if it isn't there.
        measurements: the file with what `alpa-dejavu calibrate` measured for it; None: only the fits are drawn.

    Raises:
        ValueError: they can't be written, or a measurement is wrong.
    """
    curves = (
        (name, _figure(f"{calibration.name}: {title}", axis, sizes, lines))
        for name, title, axis, sizes, lines in _pages(calibration)
    )
    links = calibration.host_links
    maps = () if links is None else matrix_pages(links, calibration.name)
    measured = () if measurements is None else measured_pages(calibration, measurements)
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
    """Returns a cluster of two hosts of the first known machine type that has a device of the calibration;
    None if there is none.
    """
    from alpa_dejavu.clusters import known_machines, named_cluster
    from alpa_dejavu.clusters.machine_file import read_machine

    for machine in known_machines():
        device: Mapping[str, Any] | None = read_machine(machine)["device"]
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


def add_lines(figure: Any, sizes: Array, lines: Lines) -> None:
    """Adds curves over sizes to a figure of plotly, each with its interval in the same colour, seen through."""
    for name, (mean, lower, upper) in lines.items():
        colour = _COLOURS[len(figure.data) // 3 % len(_COLOURS)]
        band = {"mode": "lines", "line": {"width": 0}, "legendgroup": name, "showlegend": False, "hoverinfo": "skip"}
        figure.add_scatter(x=sizes, y=lower, **band)
        figure.add_scatter(x=sizes, y=upper, fill="tonexty", fillcolor=_faint(colour), **band)
        figure.add_scatter(x=sizes, y=mean, mode="lines", line={"color": colour}, name=name, legendgroup=name)


def _faint(colour: str) -> str:
    """The colour, seen through.

    >>> _faint("#4269d0")
    'rgba(66, 105, 208, 0.2)'
    """
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, 0.2)"


def matrix_pages(found: HostLinks, name: str) -> Iterator[tuple[str, Any]]:
    """Yields maps of the measured rates and latencies from host to host: a page's name, and a plotly figure.

    Args:
        found: the measured links.
        name: the calibration's name, for the titles.
    """
    for page, figure, what in (
        ("host-rates", "bytes_per_s", "bytes per second"),
        ("host-latencies", "latency_s", "latency"),
    ):
        shown = link_map(found.hosts, found.links, figure)
        shown.update_layout(title=f"{name}: {what} from host (row) to host (column)")
        yield page, shown


def write_pages(folder: pathlib.Path, pages: Iterable[tuple[str, Any]]) -> list[pathlib.Path]:
    """Writes plotly figures as HTML pages into a folder, and returns their files.

    Args:
        folder: the folder of the pages, which is made if it isn't there.
        pages: file names without ending, and figures of plotly.

    Raises:
        ValueError: they can't be written.
    """
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
