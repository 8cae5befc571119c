"""Slicers: the conformance suite, and the exact one against all slicings there are."""

import dataclasses
import math
import re

import numpy as np
import pytest

from alpa_dejavu.problem import Objective, Slicing, SlicingProblem, StageChoice
from alpa_dejavu.slicing import SLICERS, AmpPipe, Dynamic, Exhaustive, Mcmc, Slicer, Uniform, slicer
from alpa_dejavu.slicing.why_none import why_none
from alpa_dejavu.testing import check_slicer, random_problem


@pytest.mark.parametrize("name", ["dynamic", "exhaustive"])
def test_exact_slicers_conform(name):
    check_slicer(slicer(name), exact=True)


def test_uniform_conforms():
    check_slicer(Uniform())


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
        ({"num_devices": 1.5}, "num_devices is 1.5, but must be a whole number"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"max_n_succ_stages": np.full((1, 1, 1, 1), np.nan)}, r"max_n_succ_stages\(0, 0, 0, 0\) is nan"),
        ({"max_n_succ_stages": np.full((1, 1, 1, 1), 0.5)}, "whole numbers"),
        ({"objective": "least"}, "'least', but must be one of 'training', 'inference', 'work', or an Objective"),
        ({"objective": 3}, "objective is 3"),
    ],
)
def test_bad_problems_are_named(change, said):
    given_ = {"costs_s": np.ones((1, 1, 1, 1)), "submesh_sizes": [1], "num_devices": 1, "num_micro_batches": 1}
    with pytest.raises(ValueError, match=said):
        SlicingProblem(**(given_ | change))


def test_unknown_name_says_the_known_ones():
    with pytest.raises(ValueError, match=r"no slicer named 'greedy'.*'amp_pipe', 'dynamic', 'exhaustive'"):
        slicer("greedy")
    with pytest.raises(TypeError, match="Slicer"):
        slicer(3)


def test_where_devices_share_a_machine_only_work_counts():
    costs = np.full((2, 2, 1, 1), 3.0)
    costs[0, 1] = 7.0
    problem = SlicingProblem(costs, [1], 2, 10, objective="work", devices="at most")
    assert Dynamic().slice(problem).cost_s == 60.0


@dataclasses.dataclass(frozen=True)
class Faulty(Slicer):
    fault: str

    def slice(self, problem):
        if self.fault == "refuses everything":
            raise ValueError("it has no recurrence")
        if self.fault == "refuses without a name" and problem.objective != "training":
            raise ValueError("it has no recurrence")
        if self.fault == "takes what is not allowed":
            return Slicing.of(problem, (StageChoice(0, problem.num_layers - 1, 0, 0),))
        found = Exhaustive().slice(problem)
        if self.fault == "changes the problem":
            problem.costs_s[:] = 1.0
            return Slicing.of(problem, found.stages)
        if self.fault == "never answers alike" and np.random.default_rng().random() < 0.5:
            found = Slicing.of(problem, ())
        changes = {"bounds too high": {"lower_bound_s": 2.0 * found.cost_s}, "lies": {"cost_s": 0.9 * found.cost_s}}
        return dataclasses.replace(found, **changes.get(self.fault, {}))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("refuses everything", "no recurrence"),
        ("refuses without a name", "no recurrence"),
        ("takes what is not allowed", r"StageChoice\(.* at inf"),
        ("changes the problem", "the problem itself was changed"),
        ("never answers alike", "the answer is another"),
        ("bounds too high", "is over what can be had"),
        ("lies", "cost .*, not"),
    ],
)
def test_the_conformance_suite_finds_faults(fault, said):
    with pytest.raises(AssertionError, match=rf"problem \d+: .*{said}"):
        check_slicer(Faulty(fault))


class Nothing(Objective):
    def total_s(self, problem, stages):
        return math.nan


def test_an_objective_without_an_answer_is_an_error():
    with pytest.raises(ValueError, match=r"Nothing.* gave nan for"):
        Exhaustive().slice(_flat_problem(1, 1, objective=Nothing()))


def test_an_objective_is_asked_for_allowed_finite_stages_only():
    asked = []

    class Kept(Objective):
        def total_s(self, problem, stages):
            asked.append(stages)
            return 1.0

    problem = random_problem(np.random.default_rng(2), 3, 4)
    Exhaustive().slice(dataclasses.replace(problem, objective=Kept()))
    assert asked
    assert all(math.isfinite(problem.total_s(stages)) for stages in asked)
    assert dataclasses.replace(problem, objective=Kept()).total_s(asked[0][:-1]) == math.inf


def _one(**changes):
    return SlicingProblem(**{"costs_s": np.ones((2, 2, 1, 1)), "submesh_sizes": [2], "num_devices": 4} | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"num_devices": 3}, "no slicing takes exactly 3 devices"),
        ({"num_devices": 1}, "the smallest submesh has 2 devices, but there are 1"),
        ({"num_stages": 1}, r"no slicing has num_stages=1; .*; or: no slicing takes exactly 4 devices; with"),
        ({"max_n_succ_stages": np.zeros((2, 2, 1, 1))}, r"no slicing fits into memory.*; or: .* exactly 4 devices"),
        ({"max_n_succ_stages": np.full((2, 2, 1, 1), -1), "num_devices": 3}, "several constraints together"),
        ({"costs_s": np.array([[1.0, np.inf], [np.inf, np.inf]])[..., None, None]}, "layer 1 is in no stage"),
        ({"costs_s": np.array([[np.inf] * 2, [1, 1]])[..., None, None], "num_devices": 2}, "layer 0 is in no stage"),
    ],
)
def test_the_constraint_that_forbids_all_slicings_is_named(changes, said):
    problem = _one(num_micro_batches=2, **changes)
    assert re.match(f"{said}.*" if said else "$", why_none(problem))
    assert Dynamic().slice(problem).found == (not said)


def test_uniform_cuts_evenly():
    sliced = Uniform().slice(_flat_problem(8, 4))
    assert len({stage.submesh for stage in sliced.stages}) == 1
    assert len({stage.last - stage.first for stage in sliced.stages}) == 1


def test_per_step_costs_count_once():
    problem = SlicingProblem(np.full((1, 1, 1, 1), 2.0), [1], 1, 10, per_step_s=np.full((1, 1, 1, 1), 7.0))
    assert Dynamic().slice(problem).cost_s == pytest.approx(2 * 10 + 7)


def test_no_choice_is_no_plan_and_costs_everything():
    sliced = Dynamic().slice(SlicingProblem(np.full((1, 1, 1, 1), np.inf), [1], 1, 1))
    assert not sliced.found
    assert math.isinf(sliced.cost_s)
    assert sliced.gap == 0


@pytest.mark.parametrize("slicing", [Uniform(), Mcmc(proposals=20), AmpPipe()])
def test_what_is_not_the_best_is_not_exact(slicing):
    check_slicer(slicing, problems=10)
    with pytest.raises(AssertionError, match="can be had"):
        check_slicer(slicing, exact=True)


@pytest.mark.parametrize("name", sorted(SLICERS))
@pytest.mark.parametrize(("layers", "devices", "count"), [(1, 1, None), (1, 2, None), (3, 1, 1), (4, 4, 2), (2, 4, 3)])
def test_every_slicer_takes_the_small_ends(name, layers, devices, count):
    problem = dataclasses.replace(_flat_problem(layers, devices, num_stages=count), devices="at most")
    found, best = slicer(name).slice(problem), Exhaustive().slice(problem)
    assert found.found == best.found == (count is None or count <= layers)
    assert not found.found or len(found.stages) == (count or len(found.stages))


@pytest.mark.parametrize("slicing", [Uniform(), AmpPipe()])
def test_equal_stages_are_as_many_as_are_asked_for(slicing):
    found = slicing.slice(dataclasses.replace(_flat_problem(8, 8, num_stages=3), devices="at most"))
    assert [stage.submesh for stage in found.stages] == [1, 1, 1]
    assert not slicing.slice(_flat_problem(8, 8, num_stages=3)).found
    assert len(slicing.slice(_flat_problem(8, 8, num_stages=4)).stages) == 4
