"""The cost table as a heat map: for each submesh all ranges of layers, and which of them are the plan's stages."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from alpa_dejavu._util import units
from alpa_dejavu.clusters.link_map import link_map
from alpa_dejavu.clusters.placement import site_of
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.plans.stage_rows import degrees_text, kept_text
from alpa_dejavu.problem import Cluster, StagePlan
from alpa_dejavu.report._charts import COLORS, finished


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
    menu = {"buttons": buttons, "active": shown, "x": 0.0, "xanchor": "left", "y": 1.16, "yanchor": "bottom"}
    figure.update_layout(updatemenus=[menu], legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"})
    figure.update_xaxes(title="last layer", constrain="domain", zeroline=False)
    figure.update_yaxes(title="first layer", autorange="reversed", scaleanchor="x", constrain="domain", zeroline=False)
    data = finished(figure, 620)
    data["layout"]["margin"]["t"] = 130
    return data


def _map(planned: PlanningResult, submesh: int) -> dict[str, Any]:
    table, configs = planned.table, planned.space.configs[submesh]
    costs = table.compute_costs_s[:, :, submesh, :]
    best = np.argmin(costs, axis=2)
    least = np.take_along_axis(costs, best[..., None], axis=2)[..., 0]
    named = np.array([_config(config) for config in configs])
    return {
        "z": [[None if np.isinf(x) else x / units.MILLISECONDS.value for x in row] for row in least.tolist()],
        "text": named[best].tolist(),
        "colorscale": "YlGnBu",
        "colorbar": {"title": {"text": units.MILLISECONDS.name}, "thickness": 14},
        "hoverongaps": False,
        "hovertemplate": f"layers %{{y}} to %{{x}}: %{{z:.4g}} {units.MILLISECONDS.name}<br>%{{text}}<extra></extra>",
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
_ORANGE = "#ff7f0e"
"""Seen on all colours of the map."""
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
        ("from stage", between, "circle-open", _ORANGE, 0.7 * side),
    ):
        texts = {field: f"{name} {', '.join(users)}" for field, users in fields.items()}
        marker = {"symbol": symbol, "color": color, "size": size, "line": {"width": 3}}
        legend = "within stages" if fields is inside else "from stage to stage"
        figure.add_scatter(**_marks(texts, legend, "%{y} to %{x}: %{text}", **marker))
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    return finished(figure, max(_HEIGHT, _ROW * len(names) + 140))


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
