"""Slicers: the conformance suite, and the exact one against all slicings there are."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import SlicingProblem, StageChoice
from alpa_dejavu.slicing import Dynamic, Exhaustive, Uniform, slicer
from alpa_dejavu.testing import check_slicer, random_problem


@pytest.mark.parametrize("name", ["dynamic", "exhaustive"])
def test_exact_slicers_conform(name):
    check_slicer(slicer(name), exact=True)


def test_uniform_conforms():
    check_slicer(Uniform())


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    layers=st.integers(1, 5),
    devices=st.sampled_from([1, 2, 4, 8]),
    limited=st.booleans(),
    objective=st.sampled_from(["training", "inference", "work"]),
    usage=st.sampled_from(["exactly", "at most"]),
    count=st.sampled_from([None, None, 1, 2, 3]),
)
def test_dynamic_is_exact(seed, layers, devices, limited, objective, usage, count):
    problem = random_problem(np.random.default_rng(seed), layers, devices, num_configs=2, limited=limited)
    problem = dataclasses.replace(problem, objective=objective, devices=usage, num_stages=count)
    truth, found = Exhaustive().slice(problem), Dynamic().slice(problem)
    assert found.found == truth.found
    assert found.cost_s == pytest.approx(truth.cost_s, rel=1e-9)
    assert found.gap == pytest.approx(0, abs=1e-12)


def _flat_problem(layers, devices, **kwargs):
    sizes = np.array([size for size in (1, 2, 4, 8, 16, 32, 64) if size <= devices])
    lengths = np.maximum(np.arange(layers)[None, :] - np.arange(layers)[:, None] + 1, 1)
    costs = lengths[:, :, None, None] / sizes[None, None, :, None] + 0.01 * sizes[None, None, :, None]
    return SlicingProblem(costs, sizes, devices, 32, **kwargs)


def test_memory_decides_who_may_be_early():
    room = np.full((2, 2, 1, 1), 5)
    room[0, 0] = 0
    problem = SlicingProblem(np.ones((2, 2, 1, 1)), [1], 2, 4, max_n_succ_stages=room)
    assert not Dynamic().slice(problem).found
    room[0, 0] = 1
    problem = SlicingProblem(np.ones((2, 2, 1, 1)), [1], 2, 4, max_n_succ_stages=room)
    assert Dynamic().slice(problem).stages == (StageChoice(0, 0, 0, 0), StageChoice(1, 1, 0, 0))


def test_dynamic_takes_few_rounds_on_a_large_problem():
    sliced = Dynamic().slice(_flat_problem(32, 64))
    assert sliced.found
    assert sliced.iterations < 60


def test_uniform_cuts_evenly():
    sliced = Uniform().slice(_flat_problem(8, 4))
    assert len({stage.submesh for stage in sliced.stages}) == 1
    assert len({stage.last - stage.first for stage in sliced.stages}) == 1


def test_more_stages_than_layers_is_no_plan():
    assert not Dynamic().slice(_flat_problem(2, 4, num_stages=3)).found


def test_per_step_costs_count_once():
    problem = SlicingProblem(np.full((1, 1, 1, 1), 2.0), [1], 1, 10, per_step_s=np.full((1, 1, 1, 1), 7.0))
    assert Dynamic().slice(problem).cost_s == pytest.approx(2 * 10 + 7)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"costs_s": np.full((1, 1, 1, 1), np.nan)}, "nan"),
        ({"costs_s": np.full((1, 1, 1, 1), -1.0)}, "-1"),
        ({"costs_s": np.ones((1, 2, 1, 1))}, r"\(L, L, S, C\)"),
        ({"submesh_sizes": [0]}, "at least one device"),
        ({"num_devices": 0}, "num_devices"),
        ({"num_micro_batches": -1}, "num_micro_batches"),
        ({"max_n_succ_stages": np.ones((1, 1, 1, 2))}, "max_n_succ_stages"),
        ({"per_step_s": np.full((1, 1, 1, 1), np.nan)}, "per_step_s"),
        ({"devices": "some"}, "devices"),
    ],
)
def test_bad_problems_are_named(change, said):
    given_ = {"costs_s": np.ones((1, 1, 1, 1)), "submesh_sizes": [1], "num_devices": 1, "num_micro_batches": 1}
    with pytest.raises(ValueError, match=said):
        SlicingProblem(**(given_ | change))


def test_no_choice_is_no_plan_and_costs_everything():
    sliced = Dynamic().slice(SlicingProblem(np.full((1, 1, 1, 1), np.inf), [1], 1, 1))
    assert not sliced.found
    assert math.isinf(sliced.cost_s)
    assert sliced.gap == 0


def test_unknown_name_says_the_known_ones():
    with pytest.raises(ValueError, match="'dynamic', 'exhaustive', 'uniform'"):
        slicer("greedy")
    with pytest.raises(TypeError, match="Slicer"):
        slicer(3)


def test_where_devices_share_a_machine_only_work_counts():
    costs = np.full((2, 2, 1, 1), 3.0)
    costs[0, 1] = 7.0
    problem = SlicingProblem(costs, [1], 2, 10, objective="work", devices="at most")
    assert Dynamic().slice(problem).cost_s == 60.0
