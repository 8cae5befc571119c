"""The chart of the links between a cluster's hosts, with the stages drawn on those that they use."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from alpa_dejavu.clusters.link_map import link_map
from alpa_dejavu.planning.result import PlanningResult
from alpa_dejavu.problem import Cluster, StagePlan
from alpa_dejavu.report._charts import COLORS, finished

_HEIGHT, _ROW = 420, 26
_ORANGE = "#ff7f0e"
"""Seen on all colours of the map."""
_Field = tuple[str, str]
"""The names of a host that sends and of one that receives."""


def link_chart(planned: PlanningResult) -> dict[str, Any] | None:
    """Returns a chart of the rates of links between hosts, with marks for the links that a plan uses; None if all links
    are alike, or the plan has a host that the cluster hasn't.

    Squares mark the links among the devices of one stage, circles those from a stage to the next, forward. The chart is
    plotly's JSON data.
    """
    cluster, stages = planned.cluster, planned.plan.stages
    names = [host.name for host in cluster.hosts]
    if not _unlike(cluster) or not {name for stage in stages for name in stage.hosts} <= set(names):
        return None
    figure = link_map(names, cluster.links)
    inside = _fields((str(n), _within(stage)) for n, stage in enumerate(stages))
    pairs = enumerate(itertools.pairwise(stages))
    between = _fields((f"{n} to {n + 1}", itertools.product(one.hosts, other.hosts)) for n, (one, other) in pairs)
    side = min(max(240 // len(names), 14), 56)
    figure.add_scatter(**_marks(inside, COLORS["limit"], "square-open", side, "within stages", "within stage"))
    figure.add_scatter(**_marks(between, _ORANGE, "circle-open", 0.7 * side, "from stage to stage", "from stage"))
    figure.update_layout(legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0})
    return finished(figure, max(_HEIGHT, _ROW * len(names) + 140))


def _unlike(cluster: Cluster) -> bool:
    links = [(link.latency_s, link.bytes_per_s, *link.sending) for row in cluster.links for link in row]
    count = len(cluster.hosts)
    within = {links[n * count + n] for n in range(count)}
    between = {links[a * count + b] for a in range(count) for b in range(count) if a != b}
    return count > 1 and (len(within) > 1 or len(between) > 1)


def _within(stage: StagePlan) -> Iterator[_Field]:
    """Returns the pairs of hosts whose links the devices of a stage use among themselves."""
    several = stage.submesh.devices_per_host > 1
    return ((a, b) for a, b in itertools.product(stage.hosts, repeat=2) if a != b or several)


def _fields(users: Iterable[tuple[str, Iterable[_Field]]]) -> dict[_Field, list[str]]:
    """Returns the names of those who use each field of the map."""
    found: dict[_Field, list[str]] = {}
    for who, fields in users:
        for field in fields:
            found.setdefault(field, []).append(who)
    return found


def _marks(
    fields: dict[_Field, list[str]], color: str, symbol: str, size: float, name: str, what: str
) -> dict[str, Any]:
    return {
        "x": [receiver for _, receiver in fields],
        "y": [sender for sender, _ in fields],
        "mode": "markers",
        "marker": {"symbol": symbol, "color": color, "size": size, "line": {"width": 3}},
        "text": [f"{what} {', '.join(users)}" for users in fields.values()],
        "name": name,
        "hovertemplate": "%{y} to %{x}: %{text}<extra></extra>",
    }
