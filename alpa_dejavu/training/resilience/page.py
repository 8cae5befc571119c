"""The page about a network's resilience: curves with intervals, a heat map by layer and bit, and the critical parts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_dejavu.report import finished, template
from alpa_dejavu.training.resilience._result import Resilience
from alpa_dejavu.training.resilience.bit_map import BitMap
from alpa_dejavu.training.resilience.critical import Chosen
from alpa_dejavu.training.resilience.tables import Rows, chosen_rows, curve_rows

__all__ = ["resilience_page"]

_HEIGHT, _ROW_HEIGHT = 400, 26


def resilience_page(
    name: str,
    found: Resilience,
    *,
    maps: Sequence[BitMap] = (),
    chosen: Mapping[str, Chosen] | None = None,
    stages: Rows | None = None,
) -> str:
    """Returns an HTML page about what was measured of a network, which opens in a browser without network.

    Args:
        name: the network's, for people.
        found: accuracies against shares of faulty parts.
        maps: the harm of flipped bits by layer and position, each of a format.
        chosen: parts that harm most or least, by what they are called.
        stages: the table of a plan's stages.

    Returns:
        HTML, of about 2 MB: most of it is plotly.js. Whatever users named is escaped.
    """
    said = "Lines are means over masks, bands their 90 % intervals, dotted lines the 5th percentile. Lines of single "
    said += "layers are shown where their names are clicked."
    charts = {"curves": _curves(found)}
    sections = [_section("Judged against the share that is faulty", said, curve_rows(found), "curves")]
    for one in maps:
        charts[f"bits-{one.dtype}"] = _heat_map(one)
        sections.append(_section(
            f"Flipped bits of {one.dtype}", "The points that are lost where a bit is flipped in a share of a layer's "
            "weights, or in one at least. The highest bit is the sign.", None, f"bits-{one.dtype}",
        ))  # fmt: skip
    if chosen:
        said = "Each row was tried: what the network does without all of its parts together."
        sections.append(_section("Critical and harmless parts", said, chosen_rows(chosen)))
    if stages is not None:
        said = "A stage that doesn't answer is skipped: its residual blocks pass their input on."
        sections.append(_section("Stages of the plan", said, stages))
    masks = {len(point.judged) for point in found.points}
    return template("resilience.html.j2").render(
        title=f"Resilience of {name}",
        facts=[(found.kind, str(found.units)), ("groups", str(len(found.groups))),
               ("without faults", f"{found.base:.4f}"), ("masks of each point", ", ".join(map(str, sorted(masks))))],
        sections=sections, charts=charts,
    )  # fmt: skip


def _section(title: str, said: str, rows: Rows | None, chart: str = "") -> dict[str, Any]:
    heads, cells = rows or ((), [])
    return {"title": title, "said": said, "heads": heads, "rows": cells, "chart": chart}


def _curves(found: Resilience) -> dict[str, Any]:
    import plotly.graph_objects as go
    from plotly.colors import qualitative

    figure, colors = go.Figure(), qualitative.D3
    drawn = dict.fromkeys((point.fault, point.group) for point in found.points)
    for n, (fault, group) in enumerate(drawn):
        points, color = found.curve(fault, group), colors[n % len(colors)]
        name = html.escape(f"{fault}, {group}" if group else fault)
        shares = [point.share for point in points]
        bands = [point.interval if len(point.judged) > 1 else (point.mean, point.mean) for point in points]
        style = {"legendgroup": name, "visible": True if not group else "legendonly"}
        figure.add_scatter(
            x=[*shares, *shares[::-1]], y=[*(high for _, high in bands), *(low for low, _ in bands[::-1])],
            fill="toself", fillcolor=color, opacity=0.2, line={"width": 0}, showlegend=False, hoverinfo="skip",
            name=name, **style,
        )  # fmt: skip
        figure.add_scatter(x=shares, y=[point.mean for point in points], name=name, line={"color": color}, **style)
        figure.add_scatter(
            x=shares, y=[point.low for point in points], line={"color": color, "dash": "dot"}, mode="lines",
            showlegend=False, name=f"{name}, 5th percentile", **style,
        )  # fmt: skip
    figure.update_layout(
        xaxis={"title": {"text": f"share of {html.escape(found.kind)}"}, "tickformat": ".0%", "rangemode": "tozero"},
        yaxis={"title": {"text": "judged"}, "rangemode": "tozero"},
    )
    return finished(figure, _HEIGHT)


def _heat_map(one: BitMap) -> dict[str, Any]:
    import plotly.graph_objects as go

    names = [html.escape(group) or "all" for group in one.groups]
    figure = go.Figure(go.Heatmap(
        z=(100 * one.harm).tolist(), y=names, x=list(range(one.harm.shape[1])), colorscale="Reds", zmin=0,
        colorbar={"title": {"text": "points"}}, hovertemplate="%{y}, bit %{x}: %{z:.1f} points<extra></extra>",
    ))  # fmt: skip
    figure.update_layout(
        xaxis={"title": {"text": "bit"}, "dtick": 1}, yaxis={"autorange": "reversed", "automargin": True}
    )
    return finished(figure, 140 + _ROW_HEIGHT * len(names))
