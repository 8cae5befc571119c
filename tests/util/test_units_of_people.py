"""Figures as people read them: no exponent, whatever the number, and a unit by the end of a name."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu._util import units

TEXTS = (
    units.seconds, units.size, units.traffic, units.byte_rate, units.flop, units.flop_rate, units.sample_rate,
    units.token_rate, units.price, units.number,
)  # fmt: skip


@settings(deadline=None)
@given(st.floats(-1e30, 1e30), st.sampled_from(TEXTS))
def test_no_figure_has_an_exponent(value, text):
    figure = text(value).split()[0]
    assert "e" not in figure
    assert math.isfinite(float(figure))


@settings(deadline=None)
@given(st.floats(1e-9, 1e30), st.sampled_from((units.price, units.number, units.flop, units.byte_rate)))
def test_figures_are_right_to_four_digits(value, text):
    figure, _, unit = text(value).partition(" ")
    factor = dict(units._PREFIXES).get(unit.removesuffix("B/s").removesuffix("FLOP"), 1.0) if unit != "USD" else 1.0
    assert math.isclose(float(figure) * factor, value, rel_tol=5.1e-4)


def test_what_rounding_leaves_of_nothing_is_nothing():
    assert [units.seconds(value) for value in (8.882e-16, -1e-17, 1e-10)] == ["0 s", "0 s", "0.0001 us"]


def test_equal_ends_of_a_span_are_one_figure():
    assert units.span([1.0, 3.0, 2.0], units.seconds) == "1 to 3 s"
    assert units.span([0.5, 0.25], "{:.0%}".format) == "25% to 50%"
