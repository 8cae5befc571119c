"""Sums over ranges of layers, intervals of means, and numbers as people read them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from alpa_dejavu._util import units
from alpa_dejavu._util.interval import Interval, column_intervals
from alpa_dejavu._util.range_sums import range_max, range_sum, touched_sum

amounts = st.lists(st.integers(0, 100), min_size=1, max_size=7)


@given(amounts)
def test_range_sum_and_max(values):
    total, largest = range_sum(values), range_max(values)
    for i in range(len(values)):
        for j in range(len(values)):
            part = values[i : j + 1]
            assert total[i, j] == sum(part)
            assert largest[i, j] == max(part, default=0)


@given(
    st.integers(1, 6).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(
                st.tuples(st.integers(1, 9), st.integers(0, n), st.sets(st.integers(0, n - 1)).map(sorted)), max_size=5
            ),
        )
    )
)
def test_touched_sum(case):
    num_layers, items = case
    found = touched_sum(num_layers, items)
    expected = np.zeros((num_layers, num_layers))
    for i in range(num_layers):
        for j in range(i, num_layers):
            inside = set(range(i, j + 1))
            expected[i, j] = sum(amount for amount, start, users in items if start <= i and inside & set(users))
    np.testing.assert_allclose(found, expected)


VALUES = [1.0, 2.0, 4.0, 4.5]


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_intervals_are_students(confidence):
    low, high = stats.t.interval(confidence, 3, np.mean(VALUES), stats.sem(VALUES))
    found = Interval.of(VALUES, confidence)
    assert (found.mean, found.low, found.high) == pytest.approx((2.875, low, high))


def test_an_interval_of_three_has_the_tables_two_degrees_of_freedom():
    assert Interval.of([1.0, 2.0, 3.0]).high - 2 == pytest.approx(2.92 / math.sqrt(3), rel=1e-4)


def test_an_interval_of_logarithms_is_one_of_ratios():
    found = Interval.of(np.log(VALUES).tolist()).exp()
    assert found.mean == pytest.approx(stats.gmean(VALUES))
    assert found.low < found.mean < found.high
    assert Interval.of([1.0]).exp().low == 0.0
    assert Interval.of([1.0]).exp().high == math.inf


def test_columns_have_the_intervals_of_each():
    low, mean, high = column_intervals(np.array([VALUES, VALUES[::-1]]).T)
    for n, each in enumerate((VALUES, VALUES[::-1])):
        assert Interval(float(mean[n]), float(low[n]), float(high[n])) == Interval.of(each)


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
