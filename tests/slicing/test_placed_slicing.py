"""Slicing on hosts of unlike kinds: exact against all slicings there are, and sound where that would be too much."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice
from alpa_dejavu.slicing import Dynamic, Effort, Exhaustive, Uniform
from alpa_dejavu.slicing._choices import Choices
from alpa_dejavu.slicing._dynamic import placed
from alpa_dejavu.slicing._relaxed import Relaxation
from alpa_dejavu.testing import check_slicer, random_problem
from placed_problems import made_up

EFFORT, PRICED = Effort(), Effort(few_states=0)
"""The second treats small problems like large ones."""
PROBLEMS = {
    "seed": st.integers(0, 2**32),
    "layers": st.integers(1, 5),
    "devices": st.integers(1, 5),
    "kinds": st.integers(1, 3),
    "limited": st.booleans(),
    "objective": st.sampled_from(["training", "inference", "work"]),
    "usage": st.sampled_from(["exactly", "at most"]),
    "count": st.sampled_from([None, None, 1, 2, 3]),
    "both_wait": st.booleans(),
}


def _problem(seed, layers, devices, kinds, limited, objective, usage, count, both_wait):
    problem = random_problem(np.random.default_rng(seed), layers, devices, 2, limited, kinds)
    # On alike hosts those that wait have it in their costs.
    sites = problem.sites and dataclasses.replace(problem.sites, both_wait=both_wait and kinds > 1)
    return dataclasses.replace(problem, objective=objective, devices=usage, num_stages=count, sites=sites)


# The example has a kind of hosts that there is none of, whose price could drown all costs in rounding.
@example(
    effort=PRICED, seed=3, layers=3, devices=3, kinds=3, limited=True, objective="training", usage="exactly", count=2,
    both_wait=False,
)  # fmt: skip
@settings(max_examples=250, deadline=None)
@given(effort=st.sampled_from([EFFORT, PRICED]), **PROBLEMS)
def test_it_is_exact_with_few_placements_and_by_prices_and_widening_beams(effort, **asked):
    problem = _problem(**asked)
    truth, found = Exhaustive().slice(problem), Dynamic(effort).slice(problem)
    assert found.found == truth.found
    assert found.cost_s == pytest.approx(truth.cost_s, rel=1e-9)
    assert found.gap == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_slicings_that_take_too_long_are_not_looked_for(seed):
    problem = _problem(seed, 5, 5, 2, True, "training", "at most", None, both_wait=True)
    best = Dynamic(PRICED).slice(problem)
    assert Dynamic(PRICED).within(best.cost_s * 1.01).slice(problem).cost_s == pytest.approx(best.cost_s, rel=1e-9)
    none = Dynamic(PRICED).within(best.cost_s * 0.99).slice(problem)
    assert not none.found
    assert none.lower_bound_s >= best.cost_s * 0.99 * (1 - 1e-9)


def test_who_sends_waits_as_long_as_who_takes_in():
    problem = _two_kinds(devices="exactly")
    stages = (StageChoice(0, 0, 1, 0), StageChoice(1, 1, 0, 0))
    assert problem.stage_costs_s(stages) == [3.0, 1.5]
    both = dataclasses.replace(problem, sites=dataclasses.replace(problem.sites, both_wait=True))
    assert both.stage_costs_s(stages) == [3.5, 1.5]


@pytest.mark.parametrize("name", ["most_entries", "most_bounds"])
def test_what_is_left_out_for_size_leaves_the_bound_sound(name):
    effort = dataclasses.replace(PRICED, buckets_per_e=2, **{name: 0})
    check_slicer(Dynamic(effort), exact=name == "most_entries")


@pytest.mark.parametrize("effort", [{"widths": (1,)}, {"widths": (1, 2), "steps": 3, "work": 20_000}, {"work": 0}])
def test_what_a_narrow_search_misses_is_in_its_bound(effort):
    check_slicer(Dynamic(dataclasses.replace(PRICED, **effort)))


def test_a_narrow_search_says_that_it_may_have_missed_something():
    rng = np.random.default_rng(0)
    problems = [random_problem(rng, 5, 5, num_kinds=2, limited=False) for _ in range(10)]
    narrow = [Dynamic(dataclasses.replace(PRICED, widths=(1,))).slice(problem) for problem in problems]
    truth = [Dynamic(PRICED).slice(problem) for problem in problems]
    assert any(math.isinf(each.cost_s) or each.gap > 0 for each in narrow)
    assert all(each.gap > 0 for each, best in zip(narrow, truth, strict=True) if each.cost_s > best.cost_s * 1.001)


@settings(max_examples=60, deadline=None)
@given(**PROBLEMS, prices=st.lists(st.floats(0, 10), min_size=4, max_size=4))
def test_any_prices_give_a_lower_bound(prices, **asked):
    problem = _problem(**asked | {"objective": "work"})
    choices = Choices(problem, problem.sites)
    top = float(problem.costs_s[np.isfinite(problem.costs_s)].max(initial=0) + problem.sites.crossing_s.max())
    given_ = np.array(prices[: len(choices.available)])
    relaxed = Relaxation(choices, top)
    least = Exhaustive().slice(problem).cost_s
    assert relaxed.at(given_).value <= least * (1 + 1e-9) + 1e-9
    assert relaxed.tightened(math.inf, given_, 5).value <= least * (1 + 1e-9) + 1e-9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), layers=st.integers(1, 6), usage=st.sampled_from(["exactly", "at most"]))
def test_hosts_of_one_kind_are_as_hosts_that_are_alike(seed, layers, usage):
    alike = dataclasses.replace(random_problem(np.random.default_rng(seed), layers, 8), devices=usage)
    num = len(alike.submesh_sizes)
    crossing = np.full((layers, 1), 0.5)
    sites = Sites(alike.submesh_sizes[:, None], np.array([8]), np.zeros((num, num)), crossing)
    problem = dataclasses.replace(alike, sites=sites)
    costs = alike.costs_s.copy()
    costs[1:] += 0.5
    expected = Dynamic().slice(dataclasses.replace(alike, costs_s=costs))
    assert Dynamic().slice(problem).stages == expected.stages
    stages, at_least, _ = placed(problem, sites, EFFORT)
    assert (problem.total_s(stages) if stages else math.inf) == pytest.approx(expected.cost_s, rel=1e-9)
    assert at_least == pytest.approx(expected.cost_s, rel=1e-9)


def _two_kinds(**changes):
    """A fast device and a slow one, two layers; both devices together take both layers at the slow one's pace."""
    costs = np.empty((2, 2, 3, 1))
    costs[..., 0, 0], costs[..., 1, 0], costs[..., 2, 0] = 1.0, 3.0, 3.0
    costs[0, 1] *= 2
    sites = Sites([[1, 0], [0, 1], [1, 1]], [1, 1], np.zeros((3, 3)), [[0.0], [0.5]])
    given_ = {"submesh_sizes": [1, 1, 2], "num_devices": 2, "num_micro_batches": 4, "devices": "at most"}
    return SlicingProblem(**({"costs_s": costs, "sites": sites} | given_ | changes))


@pytest.mark.parametrize("slicer", [Dynamic(), Exhaustive()])
def test_a_slow_host_stays_unused_where_that_is_better(slicer):
    problem = _two_kinds()
    assert slicer.slice(problem).stages == (StageChoice(0, 1, 0, 0),)
    assert slicer.slice(problem).cost_s == 2.0 * 4
    # The slow one last takes 3 and what it waits for, 0.5; first, it waits for nothing, but the fast one does.
    exactly = slicer.slice(_two_kinds(devices="exactly"))
    assert exactly.stages == (StageChoice(0, 0, 1, 0), StageChoice(1, 1, 0, 0))
    assert exactly.cost_s == pytest.approx(3 + 1.5 + 3 * 3)


def test_what_there_is_not_is_no_plan():
    sites = Sites([[1, 0], [0, 1], [1, 1]], [2, 0], np.zeros((3, 3)), np.zeros((2, 1)))
    costs = _two_kinds().costs_s.copy()
    costs[:, :, 0] = np.inf
    for slicer in (Dynamic(), Exhaustive(), Uniform()):
        found = slicer.slice(_two_kinds(costs_s=costs, sites=sites))
        assert not found.found
        assert math.isinf(found.cost_s)
    assert math.isinf(Dynamic().slice(_two_kinds(costs_s=costs, sites=sites)).lower_bound_s)


def test_uniform_fills_the_kinds_in_their_order():
    sites = Sites([[0, 1], [1, 0]], [1, 2], [[0, 0], [0, 0]], np.zeros((3, 1)))
    problem = SlicingProblem(np.ones((3, 3, 2, 1)), [1, 1], 3, 4, sites=sites)
    assert [stage.submesh for stage in Uniform().slice(problem).stages] == [1, 0, 0]


def test_several_kinds_of_hosts_are_close_to_their_bound():
    problem = made_up(3, 24, [4] * 5, 64)
    sliced = Dynamic().slice(problem)
    assert sliced.found
    assert sliced.gap < 0.05
    assert sliced.cost_s < Uniform().slice(problem).cost_s


def test_problems_that_differ_in_the_number_of_stages_alone_share_their_choices():
    problem = random_problem(np.random.default_rng(5), 6, 4, 2, True, 2)
    answers = [Dynamic().slice(dataclasses.replace(problem, num_stages=number)) for number in (None, 2, 3, 2, None)]
    of_choices = [Choices.of(dataclasses.replace(problem, num_stages=n), problem.sites) for n in (None, 2, 3)]
    anew = [Choices(dataclasses.replace(problem, num_stages=n), problem.sites) for n in (None, 2, 3)]
    for shared, alone in zip(of_choices, anew, strict=True):
        assert shared.bounds()[0] is of_choices[0].bounds()[0]
        assert all(
            np.array_equal(getattr(shared, name), getattr(alone, name))
            for name in ("uses", "available", "exact", "costs_s", "weights", "crossing_s")
        )
    other = Choices.of(dataclasses.replace(problem, num_micro_batches=99, objective="work"), problem.sites)
    assert not np.array_equal(other.weights, of_choices[0].weights)
    assert [answer.stages for answer in answers] == [answers[n].stages for n in (4, 3, 2, 1, 0)]
    assert [len(answer.stages) for answer in answers[1:4]] == [2, 3, 2]
