"""Elements of a picture, and its frame."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

INK, FAINT = "#333333", "#dddddd"


def picture(width: float, height: float, title: str, elements: Iterable[str]) -> str:
    """A whole picture on white, so that it can be read on pages of any colour."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
    head += f'height="{height:g}" role="img" aria-label={quoteattr(title)} font-family="sans-serif" font-size="12">'
    ground = f'<rect width="{width:g}" height="{height:g}" fill="white"/>'
    return "\n".join([head, ground, text(12, 22, title, size=15), *elements, "</svg>", ""])


def text(x: float, y: float, said: str, anchor: str = "start", size: int = 12, turned: bool = False) -> str:
    """Words whose `anchor` ("start", "middle" or "end") is at a place; turned, they go up.

    >>> text(1, 2, "a < b")
    '<text x="1" y="2" fill="#333333" font-size="12" text-anchor="start">a &lt; b</text>'
    """
    turn = f' transform="rotate(-90 {_of(x)} {_of(y)})"' if turned else ""
    place = f'x="{_of(x)}" y="{_of(y)}" fill="{INK}" font-size="{size}" text-anchor="{anchor}"{turn}'
    return f"<text {place}>{escape(said)}</text>"


def line(points: Iterable[tuple[float, float]], colour: str, width: float = 1.0) -> str:
    """Returns a line from point to point, as SVG."""
    path = " ".join(f"{_of(x)},{_of(y)}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"/>'


def dot(x: float, y: float, colour: str, said: str) -> str:
    """A point that says something where the mouse is over it."""
    return f'<circle cx="{_of(x)}" cy="{_of(y)}" r="3.5" fill="{colour}"><title>{escape(said)}</title></circle>'


def box(x: float, y: float, width: float, height: float, colour: str) -> str:
    """Filled; its edges are not blended with the ground, so that none show between neighbours."""
    size = f'width="{_of(width)}" height="{_of(height)}"'
    return f'<rect x="{_of(x)}" y="{_of(y)}" {size} fill="{colour}" shape-rendering="crispEdges"/>'


def _of(value: float) -> str:
    """Short: a tenth of a pixel is enough."""
    return f"{round(value, 1):g}"
