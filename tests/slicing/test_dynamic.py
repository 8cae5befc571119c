"""The parts of the exact slicer: which stages are left out, prices, tables and the search over bounds."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import SlicingProblem
from alpa_dejavu.slicing import Dynamic, Effort, Exhaustive, Uniform
from alpa_dejavu.slicing._dynamic import Intervals
from alpa_dejavu.slicing._stages import stages_of
from alpa_dejavu.slicing._table import Corridor, affordable, best_price, least_sum
from alpa_dejavu.testing import random_problem
from placed_problems import graph_of

PRICED = Effort(few_sums=0)
"""Small problems are treated like large ones."""


def _model(layers, devices, configs=2, memory=None, jitter=0.03, micro_batches=128, seed=0):
    """Layers that devices share ever less well; the further configs are slower and need less memory."""
    rng = np.random.default_rng(seed)
    sizes = np.array([size for size in (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512) if size <= devices])
    ends = np.concatenate([[0.0], np.cumsum(rng.uniform(0.9, 1.4, layers))])
    work = np.maximum(ends[None, 1:] - ends[:-1, None], 0.0)[:, :, None, None]
    config, size = np.arange(configs), sizes[:, None]
    costs = work / (size * 0.8 ** np.log2(size)) * (1 + 0.08 * config) * 1e-2
    costs = costs * np.exp(rng.normal(0, jitter, costs.shape))
    costs[np.tril_indices(layers, -1)] = np.inf
    room = None
    if memory is not None:
        share = np.maximum(work, 1e-9) / ends[-1] * devices / size / (1 + 0.5 * config)
        room = np.clip((memory - share) / share * layers / 4, -1, layers).astype(np.int64)
    return SlicingProblem(costs, sizes, devices, micro_batches, max_n_succ_stages=room)


def _way(graph):
    """The least sum, and its arcs, of what takes exactly 16 devices."""
    return least_sum(Corridor.whole(graph, 16, exactly=True))


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    layers=st.integers(1, 5),
    devices=st.sampled_from([1, 2, 3, 4, 6, 8]),
    limited=st.booleans(),
    free=st.booleans(),
    objective=st.sampled_from(["training", "inference", "work"]),
    usage=st.sampled_from(["exactly", "at most"]),
    count=st.sampled_from([None, None, 1, 2, 3]),
    pairs=st.booleans(),
    effort=st.sampled_from([Effort(), PRICED]),
)
def test_it_is_exact_with_prices_and_without(
    seed, layers, devices, limited, free, objective, usage, count, pairs, effort
):
    """With `pairs`, what a stage takes in depends on the submesh of the stage before it, on alike hosts."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, layers, devices, num_configs=3, limited=limited, num_kinds=int(pairs))
    if free:
        costs = np.where(rng.random(problem.costs_s.shape) < 0.3, 0.0, problem.costs_s)
        problem = dataclasses.replace(problem, costs_s=costs)
    problem = dataclasses.replace(problem, objective=objective, devices=usage, num_stages=count)
    truth, found = Exhaustive().slice(problem), Dynamic(effort).slice(problem)
    assert found.found == truth.found
    assert found.cost_s == pytest.approx(truth.cost_s, rel=1e-9)
    assert found.gap == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("memory", [None, 1.2, 3.0])
@pytest.mark.parametrize("micro_batches", [4, 128])
def test_prices_leave_the_optimum_of_larger_problems(memory, micro_batches):
    problem = _model(20, 48, memory=memory, micro_batches=micro_batches)
    plain = Dynamic().slice(problem)
    assert Dynamic(PRICED).slice(problem).cost_s == pytest.approx(plain.cost_s, rel=1e-12)


@pytest.mark.parametrize("name", ["most_arcs", "most_table_bytes"])
def test_what_is_too_large_is_left_open_and_said(name):
    problem = _model(12, 32, memory=1.2)
    truth = Dynamic(PRICED).slice(problem)
    answer = Dynamic(dataclasses.replace(PRICED, **{name: 0})).slice(problem)
    assert answer.lower_bound_s < truth.cost_s
    assert answer.lower_bound_s > 0.5 * truth.cost_s
    assert answer.stages == Uniform().slice(problem).stages


def test_that_memory_forbids_every_slicing_is_soon_known():
    problem = _model(24, 48)
    sizes = problem.submesh_sizes[:5]
    costs = problem.costs_s[:, :, :5]
    room = np.full(costs.shape, 1)
    answer = Dynamic(PRICED).slice(SlicingProblem(costs, sizes, 48, 32, max_n_succ_stages=room))
    assert not answer.found
    assert math.isinf(answer.lower_bound_s)
    assert answer.iterations < 100


def test_of_stages_that_cost_the_same_the_first_is_taken():
    problem = _model(12, 32, jitter=0.0)
    costs = np.concatenate([problem.costs_s, problem.costs_s], axis=3)
    doubled = dataclasses.replace(problem, costs_s=costs)
    assert Dynamic().slice(doubled).stages == Dynamic().slice(problem).stages


def test_beaten_choices_are_left_out_but_for_the_room_that_they_leave():
    costs = np.full((2, 2, 2, 3), np.inf)
    costs[0, 0] = [[1.0, 2.0, 3.0], [1.5, 1.5, 0.5]]
    costs[1, 1] = 1.0
    room = np.full(costs.shape, 5)
    room[0, 0, 0] = [0, 1, 1]
    stages = stages_of(SlicingProblem(costs, [2, 2], 4, 2, max_n_succ_stages=room))
    assert [stages.chosen(n) for n in np.flatnonzero(stages.first == 0)] == [stages.chosen(0)]
    assert (stages.chosen(0).submesh, stages.chosen(0).config, stages.unit) == (1, 2, 2)
    room[0, 0, 1] = [0, 0, 0]
    stages = stages_of(SlicingProblem(costs, [2, 2], 4, 2, max_n_succ_stages=room))
    assert stages.cost_s[stages.first == 0].tolist() == [2.0], "with no room for the next stage there is no slicing"


@pytest.mark.parametrize("devices", [31, 29, 23])
def test_numbers_of_devices_that_many_sizes_add_up_to_take_few_rounds(devices):
    """Prices of devices say little where only sums of unlike sizes fill the cluster; sizes that nothing offers don't
    count.
    """
    problem = _model(6, 32, configs=1)
    sizes = problem.submesh_sizes * 8
    costs = np.where(np.isin(sizes, (8, 16, 32, 64, 128)), problem.costs_s.transpose(0, 1, 3, 2), np.inf)
    costs = np.concatenate([costs.transpose(0, 1, 3, 2), np.full((6, 6, 1, 1), np.inf)], axis=2)
    problem = dataclasses.replace(
        problem, costs_s=costs, submesh_sizes=np.append(sizes, 1), num_devices=8 * devices, max_n_succ_stages=None
    )
    assert stages_of(problem).unit == 8
    slicing = Dynamic().slice(problem)
    assert slicing.cost_s == slicing.lower_bound_s == pytest.approx(Exhaustive().slice(problem).cost_s)
    assert slicing.iterations < 40


@pytest.mark.parametrize("seed", range(5))
def test_no_price_promises_more_than_there_is(seed):
    problem = random_problem(np.random.default_rng(seed), 6, 16, limited=False)
    graph, stages = graph_of(problem)
    least, arcs = _way(graph)
    assert graph.size[arcs].sum() * stages.unit == 16
    bound, best = best_price(graph, 16, exactly=True)
    for price in (-3.0, 0.0, best, 5.0):
        value, left = affordable(graph, 16, price, least * (1 + 1e-9))
        assert value <= min(least, bound * (1 + 1e-3)) + 1e-9
        assert set(graph.stage[arcs]) <= set(left.stage)
        assert _way(left)[0] == least
    assert len(affordable(graph, 16, best, bound - 1e-3)[1]) == 0


def test_many_layers_and_devices_take_few_rounds():
    free, tight = _model(64, 512, configs=3), _model(64, 512, configs=3, memory=1.5)
    found, limited = Dynamic().slice(free), Dynamic().slice(tight)
    for answer in (found, limited):
        assert answer.gap == 0
        assert answer.iterations < 150
    assert limited.cost_s > found.cost_s * 1.01
    assert math.isinf(tight.total_s(found.stages))


@pytest.mark.parametrize("few_sums", [0, 10**9])
def test_the_same_problem_gets_the_same_stages(few_sums):
    problem = _model(16, 32, jitter=0.0, memory=1.5)
    assert len({Dynamic(Effort(few_sums=few_sums)).slice(problem).stages for _ in range(2)}) == 1


@pytest.mark.parametrize(("devices", "usage", "found"), [(36, "exactly", False), (36, "at most", True)])
def test_sizes_that_cannot_add_up(devices, usage, found):
    problem = SlicingProblem(np.ones((3, 3, 2, 1)), [8, 16], devices, 4, devices=usage)
    assert Dynamic().slice(problem).found == found


@pytest.mark.parametrize("exactly", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_table_of_what_may_be_below_a_sum_has_the_same_way(seed, exactly):
    problem = random_problem(np.random.default_rng(seed), 7, 32, limited=False)
    graph, _ = graph_of(problem)
    whole = Corridor.whole(graph, 32, exactly)
    least, arcs = least_sum(whole)
    price = best_price(graph, 32, exactly)[1] or 0.1
    for share in (0.1, 1.0, 5.0):
        narrow = whole.narrowed(share * price, least * (1 + 1e-9))
        value, found = least_sum(narrow)
        assert value == least
        assert narrow.graph.stage[found].tolist() == graph.stage[arcs].tolist()
        assert least_sum(whole.narrowed(share * price, least * (1 - 1e-6)))[0] >= least
    assert len(whole.narrowed(price, 1.2 * least).graph) < len(graph)


def test_no_stage_at_all():
    assert Intervals(SlicingProblem(np.ones((2, 2, 1, 1)), [8], 4, 4), PRICED).run() == ((), math.inf, 0)
