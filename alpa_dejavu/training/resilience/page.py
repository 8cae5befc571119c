"""The page about a network's resilience: curves with intervals, a heat map by layer and bit, and the critical parts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from alpa_dejavu.problem import Plan
from alpa_dejavu.report import finished, template
from alpa_dejavu.training.resilience._measure import Point, Resilience
from alpa_dejavu.training.resilience.bit_map import BitMap
from alpa_dejavu.training.resilience.critical import ChosenParts

__all__ = ["Rows", "chosen_rows", "curve_rows", "resilience_page", "stage_rows"]

Rows: TypeAlias = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""The headings, and the rows."""


def curve_rows(figures: Resilience) -> Rows:
    """Returns a row for each point: fault, parts, share, mean with its interval, 5th percentile, outputs with NaN."""
    heads = ("fault", "of", "share", f"of {figures.units}", "mean", "90 % interval", "5th percentile", "not finite")
    return heads, [_point(figures, point) for point in figures.points]


def _point(figures: Resilience, point: Point) -> tuple[str, ...]:
    low, high = point.interval
    return (
        point.fault, point.group or f"all {figures.kind}", f"{point.share:.1%}", str(point.count), f"{point.mean:.4f}",
        f"{low:.4f} to {high:.4f}", f"{point.low:.4f}", f"{point.not_finite.mean():.1%}",
    )  # fmt: skip


def chosen_rows(chosen: Mapping[str, ChosenParts]) -> Rows:
    """Returns a row for each choice of parts, by what it is called: its parts, and loss and accuracy without them."""
    heads = ("parts", "removed", "loss", "loss without them", "accuracy", "accuracy without them")
    return heads, [
        (name, ", ".join(choice.names), *(f"{figure:.4f}" for figure in (
            choice.loss_before, choice.loss, choice.accuracy_before, choice.accuracy)))
        for name, choice in chosen.items()
    ]  # fmt: skip


def stage_rows(plan: Plan, blocks: Mapping[str, Sequence[str]], without: Mapping[str, Point]) -> Rows:
    """Returns a row for each stage of a plan: its hosts, the blocks it holds (`spares.blocks_of_stages`), and what is
    judged without its answer, by the points at which stages with blocks are removed.
    """
    heads = ("stage", "hosts", "blocks", "judged without its answer")
    return heads, [
        (name, ", ".join(stage.hosts), ", ".join(own_blocks) or "none",
         f"{without[name].mean:.4f}" if name in without else "nothing changes")
        for (name, own_blocks), stage in zip(blocks.items(), plan.stages, strict=True)
    ]  # fmt: skip


_HEIGHT, _ROW_HEIGHT = 400, 26


def resilience_page(
    name: str,
    figures: Resilience,
    *,
    maps: Sequence[BitMap] = (),
    chosen: Mapping[str, ChosenParts] | None = None,
    stages: Rows | None = None,
) -> str:
    """Returns an HTML page about what was measured of a network, which opens in a browser without network:
    accuracies against shares of faulty parts, the harm of flipped bits, parts that harm most or least by what they are
    called, and the table of a plan's stages.

    Returns:
        HTML, of about 2 MB: most of it is plotly.js. Whatever users named is escaped.
    """
    about = "Lines are means over masks, bands their 90 % intervals, dotted lines the 5th percentile. Lines of single "
    about += "layers are shown where their names are clicked."
    charts = {"curves": _curves(figures)}
    sections = [_section("Judged against the share that is faulty", about, curve_rows(figures), "curves")]
    for bits in maps:
        charts[f"bits-{bits.dtype}"] = _heat_map(bits)
        sections.append(_section(
            f"Flipped bits of {bits.dtype}", "The points that are lost where a bit is flipped in a share of a layer's "
            "weights, or in one at least. The highest bit is the sign.", None, f"bits-{bits.dtype}",
        ))  # fmt: skip
    if chosen:
        about = "Each row was tried: what the network does without all of its parts together."
        sections.append(_section("Critical and harmless parts", about, chosen_rows(chosen)))
    if stages is not None:
        about = "A stage that doesn't answer is skipped: its residual blocks pass their input on."
        sections.append(_section("Stages of the plan", about, stages))
    masks = {len(point.judged) for point in figures.points}
    return template("resilience.html.j2").render(
        title=f"Resilience of {name}",
        facts=[(figures.kind, str(figures.units)), ("groups", str(len(figures.groups))),
               ("without faults", f"{figures.base:.4f}"), ("masks of each point", ", ".join(map(str, sorted(masks))))],
        sections=sections, charts=charts,
    )  # fmt: skip


def _section(title: str, about: str, rows: Rows | None, chart: str = "") -> dict[str, Any]:
    heads, cells = rows or ((), [])
    return {"title": title, "said": about, "heads": heads, "rows": cells, "chart": chart}


def _curves(figures: Resilience) -> dict[str, Any]:
    import plotly.graph_objects as go
    from plotly.colors import qualitative

    figure, colors = go.Figure(), qualitative.D3
    drawn = dict.fromkeys((point.fault, point.group) for point in figures.points)
    for n, (fault, group) in enumerate(drawn):
        points, color = figures.curve(fault, group), colors[n % len(colors)]
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
        xaxis={"title": {"text": f"share of {html.escape(figures.kind)}"}, "tickformat": ".0%", "rangemode": "tozero"},
        yaxis={"title": {"text": "judged"}, "rangemode": "tozero"},
    )
    return finished(figure, _HEIGHT)


def _heat_map(bits: BitMap) -> dict[str, Any]:
    import plotly.graph_objects as go

    names = [html.escape(group) or "all" for group in bits.groups]
    figure = go.Figure(go.Heatmap(
        z=(100 * bits.harm).tolist(), y=names, x=list(range(bits.harm.shape[1])), colorscale="Reds", zmin=0,
        colorbar={"title": {"text": "points"}}, hovertemplate="%{y}, bit %{x}: %{z:.1f} points<extra></extra>",
    ))  # fmt: skip
    figure.update_layout(
        xaxis={"title": {"text": "bit"}, "dtick": 1}, yaxis={"autorange": "reversed", "automargin": True}
    )
    return finished(figure, 140 + _ROW_HEIGHT * len(names))
