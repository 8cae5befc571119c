"""Intervals by Student's t."""

import math

import numpy as np
import pytest
from scipy import stats

from alpa_dejavu._util.interval import Interval, column_intervals

VALUES = [1.0, 2.0, 4.0, 4.5]


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_intervals_are_students(confidence):
    low, high = stats.t.interval(confidence, 3, np.mean(VALUES), stats.sem(VALUES))
    found = Interval.of(VALUES, confidence)
    assert (found.mean, found.low, found.high) == pytest.approx((2.875, low, high))


def test_an_interval_of_three_has_the_tables_two_degrees_of_freedom():
    assert Interval.of([1.0, 2.0, 3.0]).high - 2 == pytest.approx(2.92 / math.sqrt(3), rel=1e-4)


def test_one_value_says_nothing_of_others_and_none_is_not_a_number():
    assert Interval.of([3.0]) == Interval(3.0, -math.inf, math.inf)
    assert math.isnan(Interval.of([]).mean)


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
