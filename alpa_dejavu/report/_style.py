"""The style of all pictures: their colours, curves with intervals, and axes whose ticks have units and no exponents.

In: a figure of plotly. Out: its data as the pages' scripts draw it. Pages and scripts have the colours by their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from alpa_dejavu._util.extras import from_extra

go: Any = from_extra("plots", "plotly.graph_objects")

COLORS = {
    "forward": "#5b8def", "backward": "#1f9e89", "weight": "#8fd3c4", "collective": "#f2a33a", "transfer": "#b05cc6",
    "held": "#ead8f2", "update": "#6b7280", "limit": "#d1495b",
}  # fmt: skip
"""What each kind of task has for its colour, and what is marked or has failed ("limit")."""
PALETTE = (
    "#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#6cc5b0", "#9c6b4e", "#97bbf5", "#ff8ab7", "#9498a0",
)  # fmt: skip
"""The colours of curves, in their order; they are told apart on light and on dark pages."""
SCALE = "YlGnBu"
"""The colours of maps, from little to much."""
_FEW_DECADES = 2.5
"""On a logarithmic axis that is shorter, 2 and 5 have ticks beside the powers of ten."""
_MOST_TICKS = 7


def finished(figure: go.Figure, height: int) -> dict[str, Any]:
    """Returns a plotly figure as plain JSON data, in the style of all pages and of the given height."""
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 70, "r": 30, "t": 10 if figure.layout.showlegend is False else 40, "b": 55},
        font={"family": "system-ui, sans-serif", "size": 13},
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )
    for update_axes in (figure.update_xaxes, figure.update_yaxes):
        update_axes(exponentformat="none", automargin=True, title_standoff=8)
    data: dict[str, Any] = json.loads(figure.to_json())
    data["layout"].pop("template", None)
    return data


def color_of(n: int) -> str:
    """Returns the colour of the n-th curve, from 0."""
    return PALETTE[n % len(PALETTE)]


def add_curve(
    figure: go.Figure,
    name: str,
    x: Sequence[float],
    y: Sequence[float | None],
    ends: tuple[Sequence[float], Sequence[float]] | None = None,
    *,
    color: str,
    **style: Any,
) -> None:
    """Adds a line to a figure, over its interval from lower to upper ends, if any, in the same colour, seen through."""
    if ends is not None:
        low, high = ends
        figure.add_scatter(
            x=[*x, *x[::-1]], y=[*high, *low[::-1]], fill="toself", fillcolor=color, opacity=0.18, line={"width": 0},
            mode="lines", hoverinfo="skip", name=name, legendgroup=name, **{**style, "showlegend": False},
        )  # fmt: skip
    line = {"color": color, "width": 2}
    figure.add_scatter(x=list(x), y=list(y), mode="lines", line=line, name=name, legendgroup=name, **style)


def log_axis(values: Iterable[float], text: Callable[[float], str], base: float = 10.0) -> dict[str, Any]:
    """Returns a logarithmic axis for values above zero, whose ticks at powers of the base are texts with units.

    >>> log_axis([0.002, 3.0], "{:g} s".format)["ticktext"]
    ['0.01 s', '0.1 s', '1 s']
    >>> log_axis([2e-3, 3e-2], "{:g} s".format)["ticktext"]
    ['0.002 s', '0.005 s', '0.01 s', '0.02 s']
    """
    positive = [value for value in values if value > 0]
    low, high = min(positive, default=1.0), max(positive, default=base)
    first, last = (math.log(end, base) for end in (low, high))
    steps = (1, 2, 5) if base == 10 and last - first < _FEW_DECADES else (1,)
    powers = range(math.floor(first), math.ceil(last) + 1)
    ticks = [float(f"{step * base**power:.12g}") for power in powers for step in steps]
    ticks = [tick for tick in ticks if low <= tick * (1 + 1e-9) and tick <= high * (1 + 1e-9)]
    ticks = ticks[:: 1 + (len(ticks) - 1) // _MOST_TICKS] if len(ticks) > 1 else [low, high]
    return {"type": "log", "tickvals": ticks, "ticktext": list(map(text, ticks))}
