"""Sums over ranges of layers, against the loops that they stand for."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

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
