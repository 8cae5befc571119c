"""The page about a network's resilience: curves with intervals, a heat map by layer and bit, and the critical parts."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from alpa_dejavu._util.extras import from_extra
from alpa_dejavu.problem import Plan
from alpa_dejavu.report import SCALE, Section, add_curve, color_of, finished, sections_page
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


_HEIGHT, _ROW_HEIGHT, _NUMBERED_BITS = 400, 26, 8


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
    points = _table(curve_rows(figures), ("fault", "of", "share", "mean"))
    sections = [Section("Judged against the share that is faulty", about, _curves(figures), [points])]
    about = "The points that are lost where a bit is flipped in a share of a layer's weights, or in one at least. The "
    about += "highest bit is the sign."
    sections += [Section(f"Flipped bits of {bits.dtype}", about, _heat_map(bits)) for bits in maps]
    if chosen:
        about = "Each row was tried: what the network does without all of its parts together."
        rows = _table(chosen_rows(chosen), ("parts", "loss without them", "accuracy without them"))
        sections.append(Section("Critical and harmless parts", about, None, [rows]))
    if stages is not None:
        about = "A stage that doesn't answer is skipped: its residual blocks pass their input on."
        sections.append(Section("Stages of the plan", about, None, [_table(stages, ())]))
    masks = {len(point.judged) for point in figures.points}
    facts = [(figures.kind, str(figures.units)), ("groups", str(len(figures.groups))),
             ("without faults", f"{figures.base:.4f}"), ("masks of each point", ", ".join(map(str, sorted(masks))))]
    return sections_page(f"Resilience of {name}", _LEAD, facts, sections)  # fmt: skip


_LEAD = "Which parts of a trained network may fail: all figures are measured, under many masks drawn at random."


def _table(rows: Rows, kept: Sequence[str]) -> dict[str, Any]:
    heads, cells = rows
    return {"heads": heads, "rows": cells, "kept": kept}


def _curves(figures: Resilience) -> dict[str, Any]:
    go = from_extra("plots", "plotly.graph_objects")
    figure = go.Figure()
    drawn = dict.fromkeys((point.fault, point.group) for point in figures.points)
    for n, (fault, group) in enumerate(drawn):
        points, color = figures.curve(fault, group), color_of(n)
        name = html.escape(f"{fault}, {group}" if group else fault)
        shares = [point.share for point in points]
        bands = [point.interval if len(point.judged) > 1 else (point.mean, point.mean) for point in points]
        visible = True if not group else "legendonly"
        low, high = zip(*bands, strict=True)
        add_curve(figure, name, shares, [point.mean for point in points], (low, high), color=color, visible=visible)
        figure.add_scatter(
            x=shares, y=[point.low for point in points], line={"color": color, "dash": "dot"}, mode="lines",
            showlegend=False, name=f"{name}, 5th percentile", legendgroup=name, visible=visible,
        )  # fmt: skip
    figure.update_layout(
        xaxis={"title": {"text": f"share of {html.escape(figures.kind)}"}, "tickformat": ".0%", "rangemode": "tozero"},
        yaxis={"title": {"text": "judged"}, "rangemode": "tozero"},
    )
    return finished(figure, _HEIGHT)


def _heat_map(bits: BitMap) -> dict[str, Any]:
    go = from_extra("plots", "plotly.graph_objects")
    names = [html.escape(group) or "all" for group in bits.groups]
    figure = go.Figure(go.Heatmap(
        z=(100 * bits.harm).tolist(), y=names, x=list(range(bits.harm.shape[1])), colorscale=SCALE, zmin=0,
        colorbar={"title": {"text": "points"}, "thickness": 14},
        hovertemplate="%{y}, bit %{x}: %{z:.1f} points<extra></extra>",
    ))  # fmt: skip
    every = 1 if bits.harm.shape[1] <= _NUMBERED_BITS else 4
    figure.update_layout(xaxis={"title": {"text": "bit"}, "dtick": every}, yaxis={"autorange": "reversed"})
    return finished(figure, 140 + _ROW_HEIGHT * len(names))
