"""Numbers, columns, what is left of a search, and packages that are needed."""

from __future__ import annotations

import gc
import math
import re
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from scipy import stats

from alpa_dejavu._util import units
from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.columns import Head, all_blocks, drawn, fitting_block, importance, wrapped
from alpa_dejavu._util.extras import from_extra, quiet_optuna
from alpa_dejavu._util.interval import Interval, column_intervals
from alpa_dejavu._util.range_sums import touched_sum
from alpa_dejavu._util.search_watch import SearchWatch, candidate_priced, is_stopped, watched
from alpa_dejavu.training._ray import on_workers


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
    assert sum(map(str.isdigit, figure)) < 20


@settings(deadline=None)
@given(st.floats(1e-9, 1e30), st.sampled_from((units.price, units.number, units.flop, units.byte_rate)))
def test_figures_are_right_to_four_digits(value, text):
    figure, *unit = text(value).split()
    factors = {word: factor for factor, word in units._WORDS}
    factors |= {f"{prefix}{of}": factor for prefix, factor in units._PREFIXES for of in ("B/s", "FLOP")}
    assert math.isclose(float(figure) * math.prod(factors.get(word, 1.0) for word in unit), value, rel_tol=5.1e-4)


SECONDS_OF = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "hours": 3600.0, "days": 86400.0, "years": 31557600.0}


@settings(deadline=None)
@given(st.floats(1e-9, 1e16), st.sampled_from((units.seconds, units.hours)))
def test_durations_are_right_to_four_digits_in_units_that_scale(value, text):
    figure, *word, unit = text(value).split()
    factor = 1e9 if word else 1.0
    assert math.isclose(float(figure) * factor * SECONDS_OF[unit], value, rel_tol=5.1e-4)
    assert len(figure.partition(".")[0]) <= 9


@settings(deadline=None)
@given(st.floats(2.0**33, 2.0**99), st.sampled_from((units.size, units.traffic)))
def test_sizes_are_right_in_units_that_scale(value, text):
    figure, unit = text(value).split()
    power = 10 * (1 + "KMGTPEZY".index(unit[0]))
    assert math.isclose(float(figure) * 2.0**power, value, rel_tol=5.1e-3)


HEADS = [Head("stage", "name"), Head("hosts", "name"), Head("compute"), Head("once a step"), Head("why", "text")]
ROWS = [
    ["0", "p3.16xlarge-7", "141.8 ms", "42.97 ms", "0.3 % slower: +259.6 ms idle, +32.92 ms computing"],
    ["1-14", "p3.16xlarge-[0-7]", "126.8 ms", "37.24 ms", "it has the least memory: 10.29 to 11.10 GiB"],
]


def text(width, heads=HEADS, rows=ROWS, leave=()):
    head, body = drawn(heads, rows, fitting_block(heads, rows, width, importance(heads, leave)))
    return [*head, *body]


def test_what_fits_stands_in_one_line_for_each_row():
    assert text(200) == [
        "stage  hosts               compute  once a step  why",
        "0      p3.16xlarge-7      141.8 ms     42.97 ms  0.3 % slower: +259.6 ms idle, +32.92 ms computing",
        "1-14   p3.16xlarge-[0-7]  126.8 ms     37.24 ms  it has the least memory: 10.29 to 11.10 GiB",
    ]


def test_texts_become_lines_before_a_column_is_left_out():
    assert text(70) == [
        "stage  hosts               compute    once a  why",
        "                                        step",
        "0      p3.16xlarge-7      141.8 ms  42.97 ms  0.3 % slower: +259.6 ms",
        "                                              idle, +32.92 ms",
        "                                              computing",
        "1-14   p3.16xlarge-[0-7]  126.8 ms  37.24 ms  it has the least memory:",
        "                                              10.29 to 11.10 GiB",
    ]


def test_a_number_stays_with_its_unit():
    assert wrapped("it takes 12.5 ms", 13) == ["it takes", "12.5 ms"]
    assert wrapped("2 stages", 4) == ["2", "stag", "es"]
    assert wrapped("", 4) == [""]
    assert wrapped("  indented and long", 12) == ["  indented", "and long"]


figures = st.builds("{} {}".format, st.integers(0, 10**6), st.sampled_from(["ms", "GiB", "%", "TFLOP/s"]))
names = st.text("ab-", min_size=1, max_size=12)


@settings(deadline=None)
@given(st.lists(st.tuples(names, figures, figures, figures), min_size=1, max_size=4), st.integers(1, 60))
def test_no_figure_is_cut_and_blocks_have_every_cell(rows, width):
    heads = [Head("name", "name"), Head("first figure"), Head("second"), Head("third")]
    shown = fitting_block(heads, rows, width, importance(heads))
    body = "\n".join(drawn(heads, rows, shown)[1])
    assert all(row[n] in body for row in rows for n in shown.columns)
    blocks = all_blocks(heads, rows, width)
    assert sorted({n for block in blocks for n in block.columns}) == [0, 1, 2, 3]
    for block in blocks:
        head, lines = drawn(heads, rows, block)
        fits = len(block.columns) > 2
        assert not fits or max(map(cell_len, [*head, *lines])) <= width
        assert all(re.search(re.escape(row[n]), "\n".join(lines)) for row in rows for n in block.columns)


def test_the_remaining_seconds_are_those_of_the_candidates_left():
    now = [0.0]
    watch = SearchWatch(lambda: now[0])
    candidates = [(5.0, True), (0.3, False), (0.2, False), (6.0, True), (0.2, False), (4.0, True), (0.3, False)]
    now[0] = 20.0  # until then the model is traced
    watch.begin()
    for n, (own_s, anew) in enumerate(candidates):
        assert (watch.remaining_s() is None) == (n < 2)
        now[0] += own_s
        later = candidates[n + 1 :]
        count = sum(of_it for _, of_it in later)
        watch.price(n > 0, (len(later) - count, count), anew)
        if n and later:
            left_s = sum(seconds for seconds, _ in later)
            assert left_s / 2 <= watch.remaining_s() <= 2 * left_s
    assert watch.remaining_s() is None
    assert (watch.priced, watch.left, watch.has_plan) == (7, (0, 0), True)


def test_a_search_within_the_block_is_told_to_stop():
    watch = SearchWatch()
    with watched(watch):
        candidate_priced(False, (2, 0), False)
        assert not watch.has_plan
        candidate_priced(True, (1, 0), False)
        assert watch.has_plan
        assert not is_stopped()
        watch.is_stopped = True
        assert is_stopped()
    assert not is_stopped()


@pytest.mark.parametrize(
    ("package", "extra", "used"),
    [
        ("optuna", "optuna", lambda: quiet_optuna().__enter__()),
        ("ray", "ray", lambda: on_workers([int], 1)),
        ("plotly", "plots", lambda: from_extra("plots", "plotly")),
    ],
)
def test_what_is_not_installed_is_named_with_its_extra(monkeypatch, package, extra, used):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RuntimeError, match=rf'{package} is not installed: pip install "alpa-dejavu\[{extra}\]"'):
        used()


@pytest.mark.parametrize("running", [True, False])
def test_the_collector_is_as_it_was(running):
    before = gc.isenabled()
    (gc.enable if running else gc.disable)()
    try:
        with collector_paused():
            assert not gc.isenabled()
            with collector_paused():
                pass
            assert not gc.isenabled()
        assert gc.isenabled() is running
        with pytest.raises(KeyError), collector_paused():
            raise KeyError
        assert gc.isenabled() is running
    finally:
        (gc.enable if before else gc.disable)()
