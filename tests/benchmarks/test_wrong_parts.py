"""The table of who is named a suspect, and the bound of When Neurons Fail against all sets of failing neurons."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import _robust_suspects
from _resilience_training import bound_of_counts
from _robust_suspects import ATTACKED, suspects_table
from harness import Results


def test_wrong_ones_are_counted_with_their_median_step_and_right_ones_that_are_named(monkeypatch):
    def runs(name, wrong, seeds):
        named = {"none": [None] * 10, "zeros": [4, None, 9, *[None] * 7]}.get(name, [6] * wrong + [None] * (10 - wrong))
        return {"seeds": [{"gradients": named, "descents": [None] * 10, "loss": 0.5} for _ in seeds]}

    monkeypatch.setattr(_robust_suspects, "_runs", runs)
    table = suspects_table(Results(None), [0, 1])
    rows = {row[0]: row[1:] for row in table.rows}
    assert list(rows) == list(ATTACKED)
    assert rows["none"] == ("", "", "", "", "0.500")
    assert rows["flipped signs"] == ("2 of 2, 6", "0 of 2", "6 of 6, 6", "0 of 6", "0.500")
    assert rows["zeros"] == ("2 of 2, 4, 2 right", "0 of 2", "4 of 6, 6", "0 of 6", "0.500")


def test_the_bound_is_the_papers():
    assert bound_of_counts([np.ones((2, 3)), np.full((3, 1), 0.5)], [2], 1.0) == 1.0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**16), st.lists(st.integers(0, 3), min_size=2, max_size=2))
def test_no_fault_of_neurons_exceeds_the_bounds(seed, counts):
    draw = np.random.default_rng(seed)
    kernels = [draw.standard_normal(shape) * 0.5 for shape in ((3, 4), (4, 4), (4, 2))]
    inputs = draw.standard_normal((20, 3)) * 3
    right = np.tanh(np.tanh(inputs @ kernels[0]) @ kernels[1]) @ kernels[2]
    bound = bound_of_counts(kernels, counts, 1.0)
    for first in itertools.combinations(range(4), counts[0]):
        for second in itertools.combinations(range(4), counts[1]):
            hits = [np.isin(np.arange(4), units) for units in (first, second)]
            values = np.tanh(inputs @ kernels[0]) * ~hits[0]
            wrong = (np.tanh(values @ kernels[1]) * ~hits[1]) @ kernels[2]
            assert np.abs(wrong - right).max() <= bound + 1e-9
