"""Maps of colours: the cost table, with all ranges of layers for each submesh, and the links from host to host."""

from __future__ import annotations

import collections
import html
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from alpa_dejavu._util import units
from alpa_dejavu._util.extras import from_extra
from alpa_dejavu.clusters.placement import site_of
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.plans.stage_rows import degrees_text, kept_text
from alpa_dejavu.problem import Cluster, Link, StagePlan
from alpa_dejavu.report._style import COLORS, SCALE, finished, log_axis

go: Any = from_extra("plots", "plotly.graph_objects")


def cost_map(planned: PlanningResult) -> dict[str, Any]:
    """Returns plotly's data of a plan's cost table: for each submesh, the one of most stages first, a heat map of the
    seconds of any range of layers with its cheapest config; the plan's stages are marked.
    """
    submeshes, stages = planned.space.submeshes, planned.plan.stages
    places = [site_of(stage, planned.space, planned.cluster) for stage in stages]
    used = collections.Counter(places)
    shown = max(range(len(submeshes)), key=lambda s: (used[s], -s))
    figure = go.Figure()
    for s in range(len(submeshes)):
        figure.add_heatmap(visible=s == shown, **_map(planned, s))
        mine = [(n, stage) for n, stage in enumerate(stages) if places[n] == s]
        square = {"symbol": "square-open", "color": COLORS["limit"], "size": 15}
        figure.add_scatter(visible=s == shown, **_stage_marks(mine, "this submesh", **square))
    circle = {"symbol": "circle-open", "color": "#7f8a99", "size": 8}
    figure.add_scatter(**_stage_marks(enumerate(stages), "any submesh", **circle))
    buttons = [
        {
            "label": f"{submesh.num_hosts} x {submesh.devices_per_host}"
            + _of_hosts(planned, s)
            + (" (in the plan)" if used[s] else ""),
            "method": "update",
            "args": [{"visible": [n // 2 == s for n in range(2 * len(submeshes))] + [True]}],
        }
        for s, submesh in enumerate(submeshes)
    ]
    menu = {"buttons": buttons, "active": shown, "x": 0.0, "xanchor": "left", "y": 1.2, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[menu])
    figure.update_xaxes(title="last layer", zeroline=False)
    figure.update_yaxes(title="first layer", autorange="reversed", zeroline=False)
    data = finished(figure, 540)
    data["layout"]["margin"]["t"] = 110
    return data


def _map(planned: PlanningResult, submesh: int) -> dict[str, Any]:
    table, configs = planned.table, planned.space.configs[submesh]
    costs = table.compute_costs_s[:, :, submesh, :]
    best = np.argmin(costs, axis=2)
    least = np.take_along_axis(costs, best[..., None], axis=2)[..., 0]
    named = np.array([_config(config) for config in configs])
    unit = units.unit_of_seconds(float(np.max(least, where=np.isfinite(least), initial=0.0)))
    return {
        "z": [[None if np.isinf(x) else float(f"{x / unit.value:.5g}") for x in row] for row in least.tolist()],
        "text": np.where(np.isinf(least), "", named[best]).tolist(),
        "colorscale": SCALE,
        "colorbar": {"title": {"text": unit.name}, "thickness": 14, "exponentformat": "none"},
        "hoverongaps": False,
        "hovertemplate": f"layers %{{y}} to %{{x}}: %{{z:.4~r}} {unit.name}<br>%{{text}}<extra></extra>",
    }


def _of_hosts(planned: PlanningResult, submesh: int) -> str:
    """Which hosts stand for those of a submesh, where hosts are unlike."""
    hosts = () if planned.space.hosts is None else planned.space.hosts[submesh]
    names = [planned.cluster.hosts[host].name for host in hosts]
    return "" if not names else f" like {', '.join(names[:4])}" + (" ..." if len(names) > 4 else "")


def _config(config: Any) -> str:
    return "no config" if config is None else f"{degrees_text(config)}, {kept_text(config)}"


def _stage_marks(stages: Iterable[tuple[int, StagePlan]], where: str, **marker: Any) -> dict[str, Any]:
    fields = {(stage.layers[0], stage.layers[1]): f"stage {n}: layers {stage.layers[0]} to {stage.layers[1]}"
              for n, stage in stages}  # fmt: skip
    return _marks(fields, f"the plan's stages, {where}", "%{text}", **marker, line={"width": 2})


def _marks(fields: Mapping[tuple[Any, Any], str], name: str, hover: str, **marker: Any) -> dict[str, Any]:
    """Returns the marks of a map's fields, given as rows and columns with what they stand for."""
    return {
        "x": [column for _, column in fields],
        "y": [row for row, _ in fields],
        "mode": "markers",
        "marker": marker,
        "text": list(fields.values()),
        "name": name,
        "hovertemplate": f"{hover}<extra></extra>",
    }


_HEIGHT, _ROW = 420, 26
_NUMBERED_HOSTS = 12
"""Up to so many hosts there is room for figures in the map."""
_Field = tuple[str, str]
"""The names of a host that sends and of one that receives."""


def link_chart(planned: PlanningResult) -> dict[str, Any] | None:
    """Returns plotly's data of the rates of links between hosts; None if all are alike, or a plan's host isn't there.

    Squares mark the links among the devices of one stage, circles those from a stage to the next, forward.
    """
    cluster, stages = planned.cluster, planned.plan.stages
    names = [host.name for host in cluster.hosts]
    if not _unlike(cluster) or not {name for stage in stages for name in stage.hosts} <= set(names):
        return None
    figure = link_map(names, cluster.links)
    inside = _fields((str(n), _within(stage)) for n, stage in enumerate(stages))
    pairs = enumerate(itertools.pairwise(stages))
    between = _fields((f"{n} to {n + 1}", itertools.product(sender.hosts, other.hosts)) for n, (sender, other) in pairs)
    side = min(max(240 // len(names), 14), 56)
    for name, fields, symbol, color, size in (
        ("within stage", inside, "square-open", COLORS["limit"], side),
        ("from stage", between, "circle-open", COLORS["transfer"], 0.7 * side),
    ):
        texts = {field: f"{name} {', '.join(users)}" for field, users in fields.items()}
        marker = {"symbol": symbol, "color": color, "size": size, "line": {"width": 3}}
        legend = "within stages" if fields is inside else "from stage to stage"
        figure.add_scatter(**_marks(texts, legend, "%{y} to %{x}: %{text}", **marker))
    return finished(figure, max(_HEIGHT, _ROW * len(names) + 140))


def link_map(
    hosts: Sequence[str], links: Sequence[Sequence[Link | None]], field: str = "bytes_per_s"
) -> go.Figure:
    """Returns a heat map of a field of the links from host to host, "bytes_per_s" or "latency_s", where `links[a][b]`
    goes from host a to b; None is a blank field. Colours go by logarithms, since slow links differ from fast ones by
    factors.
    """
    text = units.byte_rate if field == "bytes_per_s" else units.seconds
    values = [[None if link is None else float(getattr(link, field)) for link in row] for row in links]
    scale = log_axis([value for row in values for value in row if value], text)
    names = list(map(html.escape, hosts))
    figure = go.Figure(go.Heatmap(
        x=names,
        y=names,
        z=[[None if value is None or value <= 0 else math.log10(value) for value in row] for row in values],
        text=[["" if value is None else text(value) for value in row] for row in values],
        customdata=[
            [f", over {', '.join(link.shares)}" if link and link.shares else "" for link in row] for row in links
        ],
        texttemplate="%{text}" if len(hosts) <= _NUMBERED_HOSTS else None,
        hovertemplate="%{y} to %{x}: %{text}%{customdata}<extra></extra>",
        colorscale=SCALE,
        reversescale=field == "latency_s",
        colorbar={"tickvals": list(map(math.log10, scale["tickvals"])), "ticktext": scale["ticktext"], "thickness": 14},
        hoverongaps=False,
    ))  # fmt: skip
    axis = {"type": "category", "zeroline": False}
    figure.update_layout(xaxis={"title": "to", **axis}, yaxis={"title": "from", "autorange": "reversed", **axis})
    return figure


def _unlike(cluster: Cluster) -> bool:
    links: dict[bool, set[tuple[object, ...]]] = {True: set(), False: set()}
    for a, row in enumerate(cluster.links):
        for b, link in enumerate(row):
            links[a == b].add((link.latency_s, link.bytes_per_s, *link.sending))
    return len(cluster.hosts) > 1 and any(len(kinds) > 1 for kinds in links.values())


def _within(stage: StagePlan) -> Iterator[_Field]:
    """Returns the pairs of hosts whose links the devices of a stage use among themselves."""
    several = stage.submesh.devices_per_host > 1
    return ((a, b) for a, b in itertools.product(stage.hosts, repeat=2) if a != b or several)


def _fields(users: Iterable[tuple[str, Iterable[_Field]]]) -> dict[_Field, list[str]]:
    """Returns the names of those who use each field of the map."""
    users_of: dict[_Field, list[str]] = {}
    for who, fields in users:
        for field in fields:
            users_of.setdefault(field, []).append(who)
    return users_of
