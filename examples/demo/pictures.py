"""Pictures as SVG files, which are the same bytes whenever they show the same: curves, and strips of heat maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from alpa_dejavu.report import PALETTE, SCALE, log_axis

__all__ = ["curves", "draw", "in_style", "log_scale", "save", "strip"]

_INK, _LINE = "#1f2933", "#e1e6ec"
_STYLE = {
    "axes.prop_cycle": cycler(color=PALETTE), "axes.edgecolor": "#52606d", "axes.labelcolor": _INK,
    "axes.spines.right": False, "axes.spines.top": False, "grid.color": _LINE, "legend.frameon": False,
    "svg.fonttype": "none", "text.color": _INK, "xtick.color": _INK, "ytick.color": _INK,
}  # fmt: skip
"""The style of the pages of reports."""
Text = Callable[[float], str]


def in_style() -> AbstractContextManager[None]:
    """Returns a context in which figures are made, and saved, in the style of the pages of reports."""
    return matplotlib.rc_context(_STYLE)


def curves(
    title: str,
    across: str,
    up: str,
    drawn: Mapping[str, Sequence[tuple[float, float]]],
    texts: tuple[Text | None, Text | None] = ("{:g}".format, "{:g}".format),
) -> Figure:
    """Returns curves with a legend.

    Args:
        title: above them.
        across: what the axis from left to right is, with its unit.
        up: what the other one is.
        drawn: by name the points, x and y, in the order in which they are joined; one alone is a dot.
        texts: of the axis across, and of the one up, the text of a tick; None: it isn't logarithmic.
    """
    with in_style():
        figure = Figure(figsize=(9.5, 5.25), layout="constrained")
        axes = figure.add_subplot(title=title, xlabel=across, ylabel=up)
        draw(axes, drawn, texts)
        figure.legend(loc="outside right upper")
    return figure


def draw(
    axes: Axes, drawn: Mapping[str, Sequence[tuple[float, float]]], texts: tuple[Text | None, Text | None]
) -> None:
    """Draws curves as `curves` does, on given axes."""
    for name, points in drawn.items():
        if points:
            axes.plot(*zip(*points, strict=True), "o-", label=name, markersize=4)
    for name, text, place in zip("xy", texts, (0, 1), strict=True):
        if text is not None:
            log_scale(axes, name, [point[place] for points in drawn.values() for point in points], text)
    axes.grid(visible=True)


def log_scale(axes: Axes, axis: str, values: Sequence[float], text: Text) -> None:
    """Makes the axis "x" or "y" logarithmic, with ticks for all values, which other axes that share it may have."""
    axes.set(**{f"{axis}scale": "log"})
    ticks, scale = log_axis(values, text), getattr(axes, f"{axis}axis")
    scale.set_ticks(ticks["tickvals"], ticks["ticktext"])
    scale.set_minor_locator(NullLocator())


def strip(title: str, across: str, up: str, frames: Sequence[tuple[str, NDArray[np.float64]]]) -> Figure:
    """Returns heat maps side by side, the first row on top.

    Args:
        title: above them.
        across: what columns are.
        up: what rows are.
        frames: names, and values of one shape (rows, columns) from 0 (pale) to 1 (dark).
    """
    with in_style():
        figure = Figure(figsize=(11.75, 3.5), layout="constrained")
        figure.suptitle(title)
        figure.supxlabel(across, fontsize="medium")
        figure.supylabel(up, fontsize="medium")
        for axes, (name, values) in zip(figure.subplots(1, len(frames), sharey=True), frames, strict=True):
            rows, columns = values.shape
            # Both are counted from 1.
            ends = (0.5, columns + 0.5, rows + 0.5, 0.5)
            axes.imshow(values, cmap=SCALE, vmin=0, vmax=1, extent=ends, aspect="auto", interpolation="nearest")
            axes.set_title(name, fontsize="small")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4))
            axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes a figure as SVG, without a date or ids drawn by chance; text stays text."""
    with in_style(), matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, dpi=150, metadata={"Date": None})
