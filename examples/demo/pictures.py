"""Pictures as SVG files, which are the same bytes whenever they show the same: curves, and strips of heat maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from numpy.typing import NDArray

__all__ = ["curves", "save", "strip"]

_FEW_DECADES = 3
"""On a logarithmic axis that is shorter, 2 and 5 are written beside the powers of ten."""


def curves(
    title: str,
    across: str,
    up: str,
    drawn: Mapping[str, Sequence[tuple[float, float]]],
    log: tuple[bool, bool] = (True, True),
) -> Figure:
    """Returns curves with a legend.

    Args:
        title: above them.
        across: what the axis from left to right is, with its unit.
        up: what the other one is.
        drawn: by name the points, x and y, in the order in which they are joined; one alone is a dot.
        log: whether the axis across is logarithmic, and the one up.
    """
    figure = Figure(figsize=(9.5, 5.25), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=across, ylabel=up)
    for name, points in drawn.items():
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=name, markersize=4)
    axes.set(xscale="log" if log[0] else "linear", yscale="log" if log[1] else "linear")
    for axis, is_log in zip((axes.xaxis, axes.yaxis), log, strict=True):
        if is_log:
            low, high = axis.get_view_interval()
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < low * 10**_FEW_DECADES else (1,)))
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axis.set_minor_locator(NullLocator())
    axes.grid(color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False)
    return figure


def strip(title: str, across: str, up: str, frames: Sequence[tuple[str, NDArray[np.float64]]]) -> Figure:
    """Returns heat maps side by side, the first row on top.

    Args:
        title: above them.
        across: what columns are.
        up: what rows are.
        frames: names, and values of one shape (rows, columns) from 0 (white) to 1 (dark).
    """
    figure = Figure(figsize=(11.75, 3.5), layout="constrained")
    figure.suptitle(title)
    figure.supxlabel(across, fontsize="medium")
    figure.supylabel(up, fontsize="medium")
    for axes, (name, values) in zip(figure.subplots(1, len(frames), sharey=True), frames, strict=True):
        rows, columns = values.shape
        # Both are counted from 1.
        ends = (0.5, columns + 0.5, rows + 0.5, 0.5)
        axes.imshow(values, cmap="Blues", vmin=0, vmax=1, extent=ends, aspect="auto", interpolation="nearest")
        axes.set_title(name, fontsize="small")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as SVG, without a date or ids drawn by chance; text stays text."""
    with matplotlib.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        figure.savefig(path, dpi=150, metadata={"Date": None})
