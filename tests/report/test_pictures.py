"""Pictures: they are well-formed, show what they are given, and say what can't be shown."""

from xml.etree import ElementTree

import numpy as np
import pytest

from alpa_dejavu.report.pictures import Curve, Frame, curves, strip

SVG = "{http://www.w3.org/2000/svg}"


def places(svg: str) -> list[tuple[float, float]]:
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in ElementTree.fromstring(svg).iter(f"{SVG}circle")]


def words(svg: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_curves_are_drawn_where_their_values_are() -> None:
    svg = curves("Time & cost", "layers", "seconds", [Curve("a <fast> one", ((1, 1e-3), (10, 1e-2), (100, 1e-1)))])
    (x0, y0), (x1, y1), (x2, y2) = places(svg)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y1
    assert {"Time & cost", "layers", "seconds", "a <fast> one", "0.001", "100"} <= set(words(svg))


def test_a_curve_of_one_point_is_a_dot_and_linear_axes_keep_distances() -> None:
    svg = curves("t", "x", "y", [Curve("dot", ((0.0, 0.0),)), Curve("line", ((1.0, 1.0), (3.0, 2.0)))], (False, False))
    (x0, _), (x1, _), (x2, _) = places(svg)
    assert x2 - x1 == pytest.approx(2 * (x1 - x0), abs=0.2)
    # Two axes are always there; the curve of one point has no line.
    lines = ElementTree.fromstring(svg).iter(f"{SVG}polyline")
    assert [line.attrib["stroke-width"] for line in lines].count("2") == 1


@pytest.mark.parametrize("value", [0.0, 5.0, -3.0])
def test_one_value_alone_has_an_axis(value: float) -> None:
    assert len(places(curves("t", "x", "y", [Curve("one", ((value, value),))], (False, False)))) == 1


def test_a_strip_has_a_box_for_each_value_that_is_seen() -> None:
    values = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.01]])
    root = ElementTree.fromstring(strip("anneal", "layers", "stages", [Frame("T = 1", values), Frame("T = 0", values)]))
    boxes = list(root.iter(f"{SVG}rect"))[1:]
    assert len(boxes) == 6
    assert {box.attrib["fill"] for box in boxes} == {"#1f3a93", "#8f9cc9"}
    first, second = (float(box.attrib["x"]) for box in (boxes[0], boxes[3]))
    assert second > first + 3 * float(boxes[0].attrib["width"])


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda: Curve("a", ()), "at least one"),
        (lambda: Curve("a", ((1.0, np.inf),)), "finite"),
        (lambda: curves("t", "x", "y", []), "no curves"),
        (lambda: curves("t", "x", "y", [Curve("a", ((0.0, 1.0),))]), "0.0 is on the axis across"),
        (lambda: Frame("a", np.zeros(3)), r"\(3,\), not \(rows, columns\)"),
        (lambda: Frame("a", np.full((1, 1), 1.5)), "from 1.5 to 1.5"),
        (lambda: Frame("a", np.full((1, 1), np.nan)), "nan"),
        (lambda: strip("t", "x", "y", []), "at least one"),
        (lambda: strip("t", "x", "y", [Frame("a", np.zeros((1, 2))), Frame("b", np.zeros((2, 1)))]), "one shape"),
    ],
)
def test_what_cannot_be_drawn_is_said(draw: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        draw()  # type: ignore[operator]
