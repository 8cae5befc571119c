"""AMP's pipeline cut: the paper's against all cuts, the released code's against its recurrence, and both as slicers."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.problem import Sites, SlicingProblem
from alpa_dejavu.slicing import AmpPipe, Exhaustive, slicer
from alpa_dejavu.slicing.amp_pipe import amp_pipe_s, amp_starts
from alpa_dejavu.testing import check_slicer, random_problem


def pipeline(seed, num_layers, num_stages, missing=0.0):
    rng = np.random.default_rng(seed)
    stage_s = rng.integers(0, 12, (num_stages, num_layers, num_layers)).astype(float)
    stage_s[rng.random(stage_s.shape) < missing] = np.inf
    return stage_s, rng.integers(0, 6, (num_stages - 1, num_layers)).astype(float)


def all_starts(num_layers, num_stages):
    return [(0, *rest) for rest in itertools.combinations(range(1, num_layers), num_stages - 1)]


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    layers=st.integers(1, 6),
    stages=st.integers(1, 4),
    batches=st.integers(1, 9),
    missing=st.sampled_from([0.0, 0.3]),
)
def test_the_papers_cut_is_the_best_of_all(seed, layers, stages, batches, missing):
    stage_s, cut_s = pipeline(seed, layers, stages, missing)
    totals = [amp_pipe_s(starts, stage_s, cut_s, batches) for starts in all_starts(layers, stages)]
    found = amp_starts(stage_s, cut_s, batches)
    if math.isinf(min(totals, default=math.inf)):
        assert found == ()
    else:
        assert amp_pipe_s(found, stage_s, cut_s, batches) == min(totals)


def forgetful(stage_s, cut_s, batches, k, last, largest):
    """The released recurrence as it is written: (what is carried on, starts) of layers 0..last in k + 1 stages."""
    if k == 0:
        return (batches - 1) * max(0.0, stage_s[0, 0, last] - largest), (0,)
    best_s, best = math.inf, None
    for start in range(k, last + 1):
        cost = stage_s[k, start, last]
        before, starts = forgetful(stage_s, cut_s, batches, k - 1, start - 1, max(cost, largest))
        total = before + (batches - 1) * max(0.0, cost - largest) + cut_s[k - 1, start]
        if total < best_s:
            best_s, best = total - cut_s[k - 1, start], (*starts, start)
    return best_s, best


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), layers=st.integers(1, 6), stages=st.integers(1, 4), batches=st.integers(2, 9))
def test_the_released_cut_follows_its_recurrence(seed, layers, stages, batches):
    stage_s, cut_s = pipeline(seed, layers, stages)
    found = amp_starts(stage_s, cut_s, batches, "released")
    if stages > layers:
        assert found == ()
    else:
        assert found == forgetful(stage_s, cut_s, batches, stages - 1, layers - 1, 0.0)[1]


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_slicers_conform(variant):
    check_slicer(AmpPipe(variant))


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_best_of_equal_submeshes(seed):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_layers=4, num_devices=4, num_configs=2)
    problem.per_step_s[:] = 0.0
    found = AmpPipe().slice(problem)
    alike = [
        Exhaustive().slice(
            SlicingProblem(
                problem.costs_s[:, :, [s]][..., [c]], problem.submesh_sizes[[s]], 4, problem.num_micro_batches,
                problem.max_n_succ_stages[:, :, [s]][..., [c]],
            )
        ).cost_s
        for s, c in itertools.product(range(3), range(2))
    ]  # fmt: skip
    assert found.cost_s == pytest.approx(min(alike))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), layers=st.integers(2, 6), stages=st.integers(1, 4), spare=st.booleans())
def test_a_fixed_number_of_stages_and_boundary_costs_are_posed_as_a_slicing_problem(seed, layers, stages, spare):
    rng = np.random.default_rng(seed)
    costs, cut_s = rng.integers(1, 12, (layers, layers)).astype(float), rng.integers(0, 9, layers) / 2
    devices = stages + spare
    sites = Sites([[1]], [devices], [[0]], cut_s[:, None])
    usage = "at most" if spare else "exactly"
    problem = SlicingProblem(costs[:, :, None, None], [1], devices, 3, num_stages=stages, sites=sites, devices=usage)
    found = AmpPipe().slice(problem)
    stage_s, cuts_s = np.stack([costs] * stages), np.stack([cut_s] * (stages - 1)) if stages > 1 else np.zeros((0, 1))
    totals = [amp_pipe_s(starts, stage_s, cuts_s, 3) for starts in all_starts(layers, stages)]
    assert found.found == bool(totals)
    if totals:
        assert len(found.stages) == stages
        assert amp_pipe_s([stage.first for stage in found.stages], stage_s, cuts_s, 3) == min(totals)


def layers_in_a_row(costs, num_stages):
    ends = np.cumsum([0, *costs])
    stage = np.maximum(ends[None, 1:] - ends[:-1, None], 0.0)
    return np.stack([stage] * num_stages)


def test_the_released_cut_compares_with_a_best_that_has_lost_its_boundary():
    stage_s, cut_s = layers_in_a_row([1, 1, 1], 2), np.array([[0.0, 1.0, 0.5]])
    assert amp_starts(stage_s, cut_s, 2) == (0, 2)
    assert amp_starts(stage_s, cut_s, 2, "released") == (0, 1)
    assert amp_pipe_s((0, 1), stage_s, cut_s, 2) == 2 + 3 + 1.0
    assert amp_pipe_s((0, 2), stage_s, cut_s, 2) == 2 + 3 + 0.5


def test_with_one_micro_batch_the_released_code_cuts_equally():
    stage_s, cut_s = layers_in_a_row([9, 1, 1, 1, 1], 2), np.array([[0.0, 1.0, 7.0, 7.0, 7.0]])
    assert amp_starts(stage_s, cut_s, 1) == (0, 1)
    assert amp_starts(stage_s, cut_s, 1, "released") == (0, 3)


def test_ranks_go_through_the_kinds_of_hosts_in_order():
    uses = [[1, 0], [0, 1], [2, 0], [0, 2], [2, 2]]
    links = np.zeros((5, 5), dtype=int)
    links[0, 1] = 1
    sites = Sites(uses, [2, 2], links, np.array([[0.0, 0.0], [0.0, 9.0], [0.0, 1.0], [0.0, 9.0]]))
    costs = np.full((4, 4, 5, 1), np.inf)
    costs[:, :, :2, 0] = 1.0
    problem = SlicingProblem(costs, [1, 1, 2, 2, 4], 4, 8, sites=sites)
    stages = AmpPipe().slice(problem).stages
    assert [(stage.first, stage.submesh) for stage in stages] == [(0, 0), (1, 0), (2, 1), (3, 1)]


def test_it_has_a_name_and_variants():
    assert slicer("amp_pipe") == AmpPipe("paper")
    with pytest.raises(ValueError, match="'paper', 'released'"):
        AmpPipe("draft")
