"""The simulated step as an objective, and what no plan's step is under."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice
from alpa_dejavu.simulation.step import StageTimes, simulate
from alpa_dejavu.slicing import AmpPipe, Dynamic, Exhaustive, Mcmc, Uniform
from alpa_dejavu.slicing.makespan import Makespan, least_makespan_floor, makespan_floor
from alpa_dejavu.testing import random_problem
from placed_problems import all_plans

PROBLEMS = {
    "seed": st.integers(0, 2**32),
    "layers": st.integers(1, 4),
    "devices": st.integers(1, 4),
    "kinds": st.integers(0, 3),
    "limited": st.booleans(),
    "usage": st.sampled_from(["exactly", "at most"]),
    "count": st.sampled_from([None, None, 1, 2, 3]),
    "schedule": st.sampled_from(["1f1b", "1f1b", "gpipe", "1f1b_overlap_friendly", "inference"]),
    "sends": st.sampled_from(["blocking", "buffered", "overlapped"]),
}


def problem_of(seed, layers, devices, kinds, limited, usage, count, schedule, sends):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, layers, devices, 1, limited, kinds)
    forward_s = problem.costs_s * (1.0 if schedule == "inference" else rng.uniform(0.1, 0.9, problem.costs_s.shape))
    objective = Makespan(forward_s, schedule, sends)
    return dataclasses.replace(problem, objective=objective, devices=usage, num_stages=count)


@settings(max_examples=60, deadline=None)
@given(**PROBLEMS)
def test_no_step_is_under_its_floor_nor_any_under_the_least(**asked):
    problem = problem_of(**asked)
    found = all_plans(problem)
    chosen = found[:: max(len(found) // 12, 1)]
    for stages in chosen:
        assert makespan_floor(problem, stages) <= problem.total_s(stages) * (1 + 1e-9)
    least = min((makespan_floor(problem, stages) for stages in found), default=math.inf)
    assert least_makespan_floor(problem) == pytest.approx(least, rel=2e-6)
    assert least_makespan_floor(problem) <= least


def test_the_exhaustive_least_step_is_not_under_the_least_floor():
    for seed in range(6):
        problem = problem_of(seed, 3, 4, 2, True, "at most", None, "1f1b", ("blocking", "buffered")[seed % 2])
        least = Exhaustive().slice(problem)
        assert 0 < least_makespan_floor(problem) <= least.cost_s


def test_it_is_what_the_simulation_says():
    sites = Sites([[1, 0], [0, 1]], [1, 1], [[0, 1], [1, 0]], [[0.0, 0.0], [0.0, 6.0]])
    costs = np.full((2, 2, 2, 1), 5.0)
    stages = (StageChoice(0, 0, 0, 0), StageChoice(1, 1, 1, 0))
    for sends, schedule in itertools.product(("blocking", "buffered"), ("1f1b", "gpipe")):
        problem = SlicingProblem(
            costs, [1, 1], 2, 8, per_step_s=costs, sites=sites, objective=Makespan(costs / 5, schedule, sends)
        )
        times = [StageTimes(1.0, 4.0, 5.0, forward_send_s=3.0), StageTimes(1.0, 4.0, 5.0, backward_send_s=3.0)]
        assert problem.total_s(stages) == simulate(times, 8, schedule, sends=sends).step_s
    ahead = dataclasses.replace(problem, objective=Makespan(costs, "inference"))
    times = [StageTimes(5.0, 0.0, 5.0, forward_send_s=6.0), StageTimes(5.0, 0.0, 5.0)]
    assert ahead.total_s(stages) == simulate(times, 8, "inference").step_s


def test_alike_stages_without_transfers_take_the_closed_form():
    problem = SlicingProblem(np.full((4, 4, 1, 1), 3.0), [1], 4, 8)
    stages = tuple(StageChoice(n, n, 0, 0) for n in range(4))
    step = dataclasses.replace(problem, objective=Makespan(problem.costs_s / 3))
    assert step.total_s(stages) == problem.total_s(stages) == makespan_floor(step, stages) == 33.0


def test_the_least_floor_of_a_large_problem_is_below_its_best_plan_and_near():
    sizes = 2 ** np.arange(8)
    length = np.arange(48)[None, :] - np.arange(48)[:, None] + 1.0
    costs = np.where(length > 0, length, np.inf)[:, :, None] / sizes**0.9
    problem = SlicingProblem(costs[..., None], sizes, 128, 64)
    floor = least_makespan_floor(problem)
    assert 0.5 * Dynamic().slice(problem).cost_s < floor <= Dynamic().slice(problem).cost_s


@pytest.mark.parametrize("slicer", [Exhaustive(), Uniform(), Mcmc(proposals=50)])
def test_slicers_that_try_plans_take_it(slicer):
    problem = problem_of(1, 3, 4, 0, False, "exactly", None, "1f1b", "blocking")
    found = slicer.slice(problem)
    assert found.cost_s == problem.objective.total_s(problem, found.stages)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"forward_s": np.array(np.nan)}, "forward_s has NaN"),
        ({"forward_s": np.array(-1.0)}, "negative"),
        ({"schedule": "2f2b"}, "'2f2b'"),
        ({"sends": "by post"}, "'by post'"),
    ],
)
def test_wrong_makespans_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        Makespan(**({"forward_s": np.ones((1, 1, 1, 1))} | wrong))


@pytest.mark.parametrize(
    ("makespan", "said"),
    [
        (Makespan(np.ones((2, 2, 1, 1))), r"forward_s is \(2, 2, 1, 1\), but costs_s is \(1, 1, 1, 1\)"),
        (Makespan(np.full((1, 1, 1, 1), 3.0)), r"forward_s\(0, 0, 0, 0\) is 3.0, but costs_s there is 2.0"),
        (Makespan(np.ones((1, 1, 1, 1)), "inference"), "give all of it"),
    ],
)
def test_a_makespan_has_to_suit_the_costs(makespan, said):
    problem = SlicingProblem(np.full((1, 1, 1, 1), 2.0), [1], 1, 4, objective=makespan)
    with pytest.raises(ValueError, match=said):
        problem.total_s((StageChoice(0, 0, 0, 0),))


@pytest.mark.parametrize("slicer", [Dynamic(), AmpPipe()])
def test_slicers_without_a_recurrence_for_it_say_so(slicer):
    problem = problem_of(0, 2, 2, 0, False, "exactly", None, "1f1b", "blocking")
    with pytest.raises(ValueError, match=r"no recurrence for the objective Makespan\(.*'mcmc'"):
        slicer.slice(problem)


@settings(max_examples=40, deadline=None)
@given(**PROBLEMS, little=st.sampled_from([("most_work",), ("most_places",), ("most_work", "most_places")]))
def test_what_is_left_out_for_size_leaves_the_floor_sound(little, **asked):
    problem = problem_of(**asked)
    least = min((makespan_floor(problem, stages) for stages in all_plans(problem)), default=math.inf)
    assert least_makespan_floor(problem, **dict.fromkeys(little, 0)) <= least
    # Without a makespan nothing is known of the sends, so they count as what takes least.
    if asked["schedule"] != "inference":
        assert least_makespan_floor(dataclasses.replace(problem, objective="training")) <= least


def test_many_kinds_are_told_apart_by_how_fast_they_are():
    sites = Sites(np.eye(2, dtype=int), [1, 1], np.zeros((2, 2)), np.zeros((2, 1)))
    costs = np.full((2, 2, 2, 1), np.inf)
    costs[0, 0, :, 0] = costs[1, 1, :, 0] = [1.0, 3.0]
    problem = SlicingProblem(costs, [1, 1], 2, 8, sites=sites, devices="exactly")
    assert least_makespan_floor(problem) == pytest.approx(3 * 8, rel=1e-5)
    assert least_makespan_floor(problem, most_places=0) == pytest.approx(3 * 8, rel=1e-5)


def test_the_closed_form_is_no_lower_bound():
    costs = np.array([[3.0, np.inf], [np.inf, 1.0]])[:, :, None, None]
    problem = SlicingProblem(costs, [1], 2, 2)
    stages = (StageChoice(0, 0, 0, 0), StageChoice(1, 1, 0, 0))
    step = dataclasses.replace(problem, objective=Makespan(costs * np.array([[1 / 3, 1], [1, 1 / 2]])[..., None, None]))
    assert problem.total_s(stages) == 7.0
    assert step.total_s(stages) == makespan_floor(step, stages) == 6.0
    assert least_makespan_floor(step) == pytest.approx(6.0, rel=1e-5)


def test_no_plan_has_no_floor():
    nothing = SlicingProblem(np.full((2, 2, 1, 1), np.inf), [1], 2, 2)
    assert least_makespan_floor(nothing) == math.inf
    assert least_makespan_floor(SlicingProblem(np.ones((2, 2, 1, 1)), [1], 4, 2, num_stages=3)) == math.inf
