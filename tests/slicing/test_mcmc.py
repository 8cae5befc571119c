"""The random walk over plans: against all slicings there are, on any objective, and within its budget."""

import dataclasses
import itertools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import Objective, Sites, SlicingProblem
from alpa_dejavu.slicing import Exhaustive, Mcmc, Uniform
from alpa_dejavu.slicing.experimental._random_moves import Fill, RandomMoves
from alpa_dejavu.testing import check_slicer, random_problem
from placed_problems import all_plans


@pytest.mark.parametrize("mcmc", [Mcmc(proposals=200), Mcmc(proposals=30, start="random", chains=1, seed=3)])
def test_it_conforms(mcmc):
    check_slicer(mcmc)


def test_with_enough_proposals_it_finds_the_best_of_most_small_problems():
    problems = [random_problem(np.random.default_rng(seed), 4, 4) for seed in range(12)]
    truth = np.array([Exhaustive().slice(problem).cost_s for problem in problems])
    found = np.array([Mcmc(proposals=800).slice(problem).cost_s for problem in problems])
    assert np.isfinite(found).all()
    assert np.isclose(found, truth).sum() >= 10


def _uneven(layers=24, devices=16, **changes):
    rng = np.random.default_rng(5)
    ends = np.cumsum([0.0, *rng.integers(1, 9, layers)])
    sizes = np.array([1, 2, 4, 8, 16])
    work = np.maximum(ends[None, 1:] - ends[:-1, None], 0.0)
    costs = work[:, :, None] / sizes + 0.3 * (sizes - 1)
    costs[np.tril_indices(layers, -1)] = np.inf
    return SlicingProblem(costs[..., None], sizes, devices, 32, **changes)


def test_the_same_seed_gives_the_same_and_another_one_another_walk():
    problem = _uneven(num_stages=5)
    one, again, other = (Mcmc(proposals=60, start="random", seed=seed).slice(problem) for seed in (1, 1, 2))
    assert one.stages == again.stages
    assert one.stages != other.stages
    assert len(one.stages) == 5


def test_it_counts_its_proposals_or_keeps_its_time():
    problem = _uneven()
    assert Mcmc(proposals=10, chains=4).slice(problem).iterations == 10
    # Each of two chains has 5 s, and a look at the clock takes one: it begins, makes four steps, and its time is over.
    kept = Mcmc(proposals=1, seconds=10.0, chains=2, clock=itertools.count().__next__)
    assert kept.slice(problem).iterations == 8
    assert repr(kept) == "Mcmc(proposals=1, seconds=10.0, seed=0, chains=2, start='uniform', hottest=0.1)"


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    layers=st.integers(1, 8),
    kinds=st.integers(0, 3),
    usage=st.sampled_from(["exactly", "at most"]),
    count=st.sampled_from([None, None, 2, 3]),
)
def test_moves_keep_layers_devices_and_the_number_of_stages(seed, layers, kinds, usage, count):
    problem = random_problem(np.random.default_rng(seed), layers, 8, limited=False, num_kinds=kinds)
    problem = dataclasses.replace(problem, devices=usage, num_stages=count, costs_s=np.ones(problem.costs_s.shape))
    moves = RandomMoves(problem, random.Random(seed))
    stages = moves.plan()
    for _ in range(60 if stages else 0):
        assert math.isfinite(problem.total_s(stages))
        stages = moves.moved(stages)


def test_moves_come_to_every_plan():
    sites = Sites([[1, 0], [0, 1], [1, 1]], [2, 2], np.zeros((3, 3)), np.zeros((3, 1)))
    problem = SlicingProblem(np.ones((3, 3, 3, 2)), [1, 1, 2], 4, 2, devices="at most", sites=sites)
    tried = set()
    rng = random.Random(0)
    moves = RandomMoves(problem, rng)
    stages = moves.plan()
    for _ in range(20_000):
        tried.add(stages)
        stages = moves.moved(stages)
    assert len(tried) == len(all_plans(problem))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"proposals": 0}, "proposals is 0"),
        ({"proposals": 1.5}, "whole number"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"chains": 0}, "chains is 0"),
        ({"start": "best"}, "'uniform', 'random'"),
        ({"hottest": math.nan}, "hottest is nan"),
    ],
)
def test_wrong_settings_are_named(wrong, said):
    with pytest.raises(ValueError, match=said):
        Mcmc(**wrong)


def test_it_is_better_than_its_start():
    problem = _uneven()
    assert Mcmc(proposals=2000).slice(problem).cost_s < 0.99 * Uniform().slice(problem).cost_s


def test_from_a_random_start_it_comes_to_about_the_same():
    problem = _uneven()
    found = Mcmc(proposals=4000, start="random").slice(problem).cost_s
    assert found < 1.02 * Mcmc(proposals=4000).slice(problem).cost_s


@dataclasses.dataclass(frozen=True)
class MostUneven(Objective):
    """Costs less the more layers the largest stage has, and rules one stage for all of them out."""

    def total_s(self, problem, stages):
        most = max(stage.last - stage.first + 1 for stage in stages)
        return math.inf if len(stages) == 1 else float(problem.num_layers - most)


def test_any_objective_will_do():
    problem = _uneven(objective=MostUneven())
    assert Mcmc(proposals=1500).slice(problem).cost_s == 1.0


def test_devices_are_used_exactly_where_that_is_hard():
    problem = SlicingProblem(np.ones((9, 9, 2, 1)), [3, 5], 19, 4)
    found = Mcmc(proposals=50).slice(problem)
    assert sorted(problem.submesh_sizes[stage.submesh] for stage in found.stages) == [3, 3, 3, 5, 5]
    assert not Mcmc(proposals=50).slice(dataclasses.replace(problem, num_devices=7)).found
    assert not Mcmc(proposals=50).slice(dataclasses.replace(problem, num_stages=10)).found


def test_it_walks_out_of_what_is_not_allowed():
    layers = 12
    costs, room = np.ones((layers, layers, 1, 3)), np.full((layers, layers, 1, 3), -1)
    for n in range(layers):
        costs[n, n + 1 :] = np.inf
        room[n, n, 0, n % 3] = layers - 1 - n
    problem = SlicingProblem(costs, [1], layers, 4, max_n_succ_stages=room)
    found = Mcmc(proposals=3000, start="random").slice(problem)
    assert [stage.config for stage in found.stages] == [n % 3 for n in range(layers)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 5), kinds=st.integers(1, 3), exactly=st.booleans())
def test_submeshes_are_drawn_for_the_devices_there_are(seed, count, kinds, exactly):
    rng = random.Random(seed)
    uses = [tuple(rng.randint(0, 3) for _ in range(kinds)) for _ in range(6)]
    uses = [use if any(use) else (1,) * kinds for use in uses]
    picked = [rng.choice(uses) for _ in range(count)]
    available = tuple(map(sum, zip(*picked, strict=True)))
    drawn = Fill(uses, exactly, rng).draw(count, available)
    used = tuple(map(sum, zip(*(uses[submesh] for submesh in drawn), strict=True)))
    assert len(drawn) == count
    assert used == available or (not exactly and all(x <= y for x, y in zip(used, available, strict=True)))
