"""The stand-ins for Alpa's dynamic programs, against Alpa's own."""

import math

import numpy as np
import pytest

import alpa_dejavu
from alpa_dejavu.slicing import SLICERS, Mcmc

SUBMESHES = ((1, 1), (1, 2), (1, 4))


def random_costs(seed, layers):
    rng = np.random.default_rng(seed)
    costs = rng.random((layers, layers, 3, 2)) + 0.1
    costs[np.tril_indices(layers, -1)] = np.inf
    return costs, rng.integers(0, layers, costs.shape)


@pytest.mark.parametrize("seed", range(8))
def test_never_costlier_than_alpas(seed):
    from alpa.pipeline_parallel.stage_construction import training_dp

    costs, room = random_costs(seed, 4)
    theirs, _ = training_dp(4, 4, 6, SUBMESHES, 2, costs, room)
    ours, stages = alpa_dejavu.training_dp(4, 4, 6, SUBMESHES, 2, costs, room)
    assert ours <= theirs * (1 + 1e-6)
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert stages[0][0][0] == 0
    assert stages[-1][0][1] == 4


@pytest.mark.parametrize("seed", range(8))
def test_inference_equals_alpas(seed):
    from alpa.pipeline_parallel.stage_construction import inference_dp

    costs, _ = random_costs(seed, 4)
    theirs, _ = inference_dp(4, 4, SUBMESHES, 2, costs)
    ours, stages = alpa_dejavu.inference_dp(4, 4, SUBMESHES, 2, costs)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert sum(math.prod(SUBMESHES[s]) for _, s, _ in stages) == 4


def test_no_solution_is_alpas_answer_too():
    nothing = np.full((2, 2, 3, 2), np.inf)
    assert alpa_dejavu.training_dp(2, 4, 6, SUBMESHES, 2, nothing, np.zeros_like(nothing)) == (math.inf, None)
    assert alpa_dejavu.inference_dp(2, 4, SUBMESHES, 2, nothing) == (math.inf, None)


@pytest.mark.parametrize("name", sorted(SLICERS))
def test_every_slicer_is_a_stand_in(name):
    costs, room = random_costs(3, 4)
    cost, stages = alpa_dejavu.training_dp(4, 4, 6, SUBMESHES, 2, costs, room, slicer=name)
    best, _ = alpa_dejavu.training_dp(4, 4, 6, SUBMESHES, 2, costs, room)
    assert cost >= best
    ends = [0, *(end for (_, end), _, _ in stages)]
    assert [start for (start, _), _, _ in stages] == ends[:-1]
    assert ends[-1] == 4
    assert sum(math.prod(SUBMESHES[s]) for _, s, _ in stages) == 4
    assert all(type(x) is int for (start, end), s, c in stages for x in (start, end, s, c))
    taken = [costs[start, end - 1, s, c] for (start, end), s, c in stages]
    assert cost == pytest.approx(sum(taken) + 5 * max(taken))
    assert all(len(stages) - 1 - n <= room[i, j - 1, s, c] for n, ((i, j), s, c) in enumerate(stages))
    nothing = np.full((4, 4, 3, 2), np.inf)
    assert alpa_dejavu.training_dp(4, 4, 6, SUBMESHES, 2, nothing, room, slicer=name) == (math.inf, None)


@pytest.mark.parametrize("seed", range(6))
def test_where_stages_are_missing_the_answer_is_alpas(seed):
    from alpa.pipeline_parallel.stage_construction import training_dp

    costs, room = random_costs(seed, 4)
    costs[np.random.default_rng(seed).random(costs.shape) < 0.7] = np.inf
    room -= 1
    theirs, their_stages = training_dp(4, 4, 6, SUBMESHES, 2, costs, room)
    ours, stages = alpa_dejavu.training_dp(4, 4, 6, SUBMESHES, 2, costs, room)
    assert (stages is None) == (their_stages is None) == math.isinf(ours)
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_devices_that_do_not_add_up_are_no_solution_and_the_log_says_why(caplog):
    one, two = np.ones((2, 2, 1, 1)), np.ones((2, 2, 2, 1))
    assert alpa_dejavu.training_dp(2, 3, 6, [(1, 2)], 1, one, one) == (math.inf, None)
    assert "no slicing takes exactly 3 devices" in caplog.text
    # Two stages of unlike sizes take three devices; equal ones don't.
    assert alpa_dejavu.training_dp(2, 3, 6, [(1, 1), (1, 2)], 1, two, two, "uniform") == (math.inf, None)
    assert "but there are some; take 'dynamic'" in caplog.text


def test_a_wrong_slicer_is_named():
    given = 1, 1, 4, [(1, 1)], 1, [[[[2.0]]]], [[[[0]]]]
    with pytest.raises(ValueError, match="no slicer named 'greedy'; choose one of 'amp_pipe', 'dynamic'"):
        alpa_dejavu.training_dp(*given, slicer="greedy")
    with pytest.raises(TypeError, match="slicer is 3"):
        alpa_dejavu.training_dp(*given, slicer=3)
    assert alpa_dejavu.training_dp(*given, slicer=Mcmc(proposals=1)) == (8.0, [((0, 1), 0, 0)])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({5: [[[[math.nan]]]]}, "nan"),
        ({5: [[[[-2.0]]]]}, "-2.0"),
        ({6: [[[[math.nan]]]]}, "max_n_succ_stages"),
        ({6: [[[[0, 0]]]]}, r"max_n_succ_stages is \(1, 1, 1, 2\)"),
        ({2: 0}, "num_micro_batches is 0"),
        ({1: -1}, "num_devices is -1"),
        ({3: [(1, 0)]}, "at least one device"),
    ],
)
def test_wrong_numbers_are_named(changed, said):
    given = [1, 1, 4, [(1, 1)], 1, [[[[2.0]]]], [[[[0]]]]]
    for place, value in changed.items():
        given[place] = value
    with pytest.raises(ValueError, match=said):
        alpa_dejavu.training_dp(*given)


def _costs(entries):
    costs = np.full((2, 2, 3, 2), np.inf)
    for place, seconds in entries.items():
        costs[place] = seconds
    return costs, np.full(costs.shape, 9)


def test_single_precision_hides_a_cheaper_config_from_alpa():
    from alpa.pipeline_parallel.stage_construction import training_dp

    costs, room = _costs({(0, 0, 0, 0): 2.0, (1, 1, 0, 0): 1.0 + 4e-8, (1, 1, 0, 1): 1.0})
    _, theirs = training_dp(2, 2, 4, SUBMESHES, 2, costs, room)
    ours, stages = alpa_dejavu.training_dp(2, 2, 4, SUBMESHES, 2, costs, room)
    assert ours == 9.0
    assert stages == [((0, 1), 0, 0), ((1, 2), 0, 1)]
    assert list(theirs) == [((0, 1), 0, 0), ((1, 2), 0, 0)], "the same in single precision, and the first of the two"


def test_steps_of_a_microsecond_hide_a_plan_that_is_a_sixth_cheaper_from_alpa():
    from alpa.pipeline_parallel.stage_construction import training_dp

    costs, room = _costs({(0, 0, 0, 0): 1.2e-6, (1, 1, 0, 0): 1.9e-6, (0, 1, 1, 0): 2.4e-6})
    theirs, _ = training_dp(2, 2, 10, SUBMESHES, 2, costs, room)
    ours, stages = alpa_dejavu.training_dp(2, 2, 10, SUBMESHES, 2, costs, room)
    assert theirs == pytest.approx(24e-6, rel=1e-6)
    assert ours == pytest.approx(20.2e-6, rel=1e-12)
    assert len(stages) == 2


def test_shapes_must_fit():
    with pytest.raises(ValueError, match=r"\(2, 2, 3, 2\), but must be \(3, 3, 3, 2\)"):
        alpa_dejavu.training_dp(3, 4, 6, SUBMESHES, 2, np.ones((2, 2, 3, 2)), np.ones((2, 2, 3, 2)))
