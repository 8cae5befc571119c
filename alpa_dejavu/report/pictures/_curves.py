"""Curves over two axes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.report.pictures._axis import Axis
from alpa_dejavu.report.pictures._svg import FAINT, INK, box, dot, line, picture, text

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 760, 420, 70, 190, 42, 52
_COLOURS = (
    "#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0", "#ff8ab7",
)  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Curve:
    """Points of a name, in the order in which they are joined.

    Attributes:
        name: as it stands in the legend.
        points: x and y; one alone is a dot.

    Raises ValueError where there are none, or one isn't finite.
    """

    name: str
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not self.points or not all(math.isfinite(value) for point in self.points for value in point):
            raise ValueError(f"curve {self.name!r}: points are {self.points}; give finite ones, at least one")


def curves(title: str, across: str, up: str, drawn: Sequence[Curve], log: tuple[bool, bool] = (True, True)) -> str:
    """A picture of curves with a legend.

    Args:
        title: above it.
        across: what the axis from left to right is, with its unit.
        up: what the other one is.
        drawn: in the order of the legend.
        log: whether the axis across is logarithmic, and the one up.

    Returns:
        SVG text.

    Raises:
        ValueError: there are no curves, or a logarithmic axis has a value that isn't above 0.
    """
    if not drawn:
        raise ValueError(f"{title}: there are no curves; give at least one")
    for which, name in enumerate(("across", "up")):
        low = min(point[which] for curve in drawn for point in curve.points)
        if log[which] and low <= 0:
            said = f"{title}: {low} is on the axis {name}, which is logarithmic"
            raise ValueError(f"{said}; make it linear, or leave the value out")
    x = Axis.over((px for curve in drawn for px, _ in curve.points), _LEFT, _WIDTH - _RIGHT, log[0])
    y = Axis.over((py for curve in drawn for _, py in curve.points), _HEIGHT - _BOTTOM, _TOP, log[1])
    elements = _axes(x, y, across, up)
    for n, curve in enumerate(drawn):
        colour = _COLOURS[n % len(_COLOURS)]
        places = [(x.place(px), y.place(py)) for px, py in curve.points]
        if len(places) > 1:
            elements.append(line(places, colour, 2))
        for (px, py), place in zip(curve.points, places, strict=True):
            elements.append(dot(*place, colour, f"{curve.name}: {px:.4g}, {py:.4g}"))
        height = _TOP + 14 + 20 * n
        left = _WIDTH - _RIGHT + 16
        elements += [box(left, height - 9, 14, 9, colour), text(left + 20, height, curve.name)]
    return picture(_WIDTH, max(_HEIGHT, _TOP + 20 * len(drawn) + 20), title, elements)


def _axes(x: Axis, y: Axis, across: str, up: str) -> list[str]:
    elements = []
    for tick in x.ticks():
        place = x.place(tick)
        elements += [line([(place, y.start), (place, y.end)], FAINT), text(place, y.start + 16, f"{tick:g}", "middle")]
    for tick in y.ticks():
        place = y.place(tick)
        elements += [line([(x.start, place), (x.end, place)], FAINT), text(x.start - 6, place + 4, f"{tick:g}", "end")]
    elements.append(line([(x.start, y.end), (x.start, y.start), (x.end, y.start)], INK))
    elements.append(text((x.start + x.end) / 2, y.start + 38, across, "middle"))
    elements.append(text(16, (y.start + y.end) / 2, up, "middle", turned=True))
    return elements
