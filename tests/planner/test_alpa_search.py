"""The stand-ins for Alpa's dynamic programs, against Alpa's own."""

import math

import numpy as np
import pytest

import alpa_dejavu

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


def test_shapes_must_fit():
    with pytest.raises(ValueError, match=r"\(2, 2, 3, 2\), but must be \(3, 3, 3, 2\)"):
        alpa_dejavu.training_dp(3, 4, 6, SUBMESHES, 2, np.ones((2, 2, 3, 2)), np.ones((2, 2, 3, 2)))
