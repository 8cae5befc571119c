"""The margin of memory: as large as the chosen risk asks for, and what is said where a risk can't be known."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import chain, space
from plans import example_plan, stage

import alpa_dejavu
from alpa_dejavu import NoPlanError
from alpa_dejavu.memory import StageMemory
from alpa_dejavu.memory_margin import KINDS, MemoryMargin, MemoryResiduals, with_memory_note
from alpa_dejavu.problem import Run
from alpa_dejavu.testing import example_cluster

ONE = StageMemory(*(np.full((1, 1), size) for size in (4e9, 1e9, 2e9)))
COUNTED = {"resident": 4e9, "per_micro_batch": 2e9, "temporary": 2e9}


def residuals(count=400, spread=0.1, groups=200, **kinds):
    draws = np.random.default_rng(0).standard_normal(count)
    draws = (draws - draws.mean()) / draws.std(ddof=1)
    return MemoryResiduals({"peak": tuple(spread * draws), **kinds}, groups)


def peak(memory):
    return memory.resident[0, 0] + memory.temporary[0, 0] + memory.per_micro_batch[0, 0]


def test_without_residuals_the_count_is_taken_as_it_is_and_the_risk_is_unknown():
    margin = MemoryMargin()
    (host,) = CLUSTER.hosts
    assert margin.needed(ONE) is ONE
    assert margin.probability(COUNTED, 16e9) is None
    assert not margin.is_known
    assert "unknown" in margin.note()


def test_known_residuals_ask_for_their_quantile():
    margin = MemoryMargin(0.01, residuals())
    assert margin.is_known
    # 99 % of Student's t with 199 degrees of freedom.
    assert peak(margin.needed(ONE)) == pytest.approx(7e9 * np.exp(0.1 * 2.345), rel=2e-3)
    assert margin.probability(COUNTED, 8e9 * np.exp(0.1 * 2.345)) == pytest.approx(0.01, rel=0.05)
    assert margin.note() == "plans are taken under a risk of 1.00% of running out of memory"


def test_too_few_residuals_are_said_and_have_the_tails_of_two_degrees_of_freedom():
    margin = MemoryMargin(0.01, residuals(99))
    assert not margin.is_known
    assert "99 residuals in 200 groups are too few" in margin.note()
    assert "(100 are needed)" in margin.note()
    assert peak(margin.needed(ONE)) == pytest.approx(7e9 * np.exp(0.1 * 6.9646), rel=5e-3)
    assert MemoryMargin(0.02, residuals(99)).is_known


def test_kinds_have_spreads_of_their_own():
    steady = residuals(temporary=(-0.5, -0.5), resident=(0.0, 0.0))
    needed = MemoryMargin(0.01, steady).needed(ONE)
    assert needed.temporary[0, 0] == pytest.approx(2e9 * np.exp(-0.5), rel=1e-4)
    assert needed.resident[0, 0] == pytest.approx(4e9, rel=1e-4)
    assert needed.per_micro_batch[0, 0] > 1e9


@settings(max_examples=50, deadline=None)
@given(st.floats(0.001, 0.4), st.floats(0.001, 0.4), st.floats(1e9, 3e10), st.floats(1.001, 3.0))
def test_less_risk_asks_for_more_and_more_memory_risks_less(one, other, limit, more):
    known = residuals()
    low, high = sorted((one, other))
    assert peak(MemoryMargin(low, known).needed(ONE)) >= peak(MemoryMargin(high, known).needed(ONE)) * (1 - 1e-9)
    margin = MemoryMargin(0.01, known)
    assert margin.probability(COUNTED, limit * more) <= margin.probability(COUNTED, limit) <= 1


def test_what_is_needed_at_a_risk_runs_out_with_that_risk():
    margin = MemoryMargin(0.05, residuals(resident=(0.1, -0.1, 0.2, 0.0) * 30))
    needed = margin.needed(ONE)
    counted = dict(zip(KINDS, (4e9, 1e9, 2e9), strict=True))
    assert margin.probability(counted, peak(needed)) == pytest.approx(0.05, rel=0.02)


def test_the_planner_leaves_the_margin_free():
    model, run = chain(4, parameter_bytes=2.0**20, exchanged=(1e8,) * 4), Run(8)
    counted = alpa_dejavu.plan(model, example_cluster(1), space(), run)
    assert any("unknown" in note for note in counted.notes)
    limit = 1.02 * max(stage.memory_bytes for stage in counted.stages)
    cluster = example_cluster(1, memory_bytes=limit)
    assert alpa_dejavu.plan(model, cluster, space(), run).stages[0].memory_bytes == counted.stages[0].memory_bytes
    larger = MemoryResiduals({"peak": tuple(0.05 + 1e-3 * np.sin(np.arange(200)))}, 50)
    careful = alpa_dejavu.plan(model, cluster, space(), run, memory=larger)
    assert max(stage.memory_bytes for stage in careful.stages) < limit / np.exp(0.05)
    assert any("under a risk of 1.00%" in note for note in careful.notes)
    with pytest.raises(NoPlanError, match="bytes are missing"):
        alpa_dejavu.plan(model, cluster, space(), run, memory=MemoryResiduals({"peak": (5.0, 5.1, 4.9)}, 3))


def test_a_plan_says_the_risk_of_its_fullest_stage():
    full = stage((0, 3), submesh=(1, 4), logical=(4, 1), memory_bytes=16e9)
    plan = example_plan(stages=(full,))
    (note,) = with_memory_note(plan, MemoryMargin(0.01, residuals()), CLUSTER).notes
    assert note.endswith("; this plan's fullest stage has one of 0.5")


@pytest.mark.parametrize(
    ("log_ratios", "groups", "said"),
    [
        ({"peak": (0.1,)}, 2, "two finite logarithms"),
        ({"peak": (0.1, np.nan)}, 2, "two finite logarithms"),
        ({"parameters": (0.1, 0.2)}, 2, "there is no kind 'parameters'"),
        ({"resident": (0.1, 0.2)}, 2, "needs each of"),
        ({"peak": (0.1, 0.2)}, 0, "num_groups is 0"),
        ({"peak": (0.1, 0.2)}, None, "framework is empty"),
    ],
)
def test_wrong_residuals_are_named(log_ratios, groups, said):
    with pytest.raises(ValueError, match=said):
        MemoryResiduals(log_ratios, 1 if groups is None else groups, "", "Alpa" if groups is not None else "")


def test_residuals_of_another_framework_are_a_spread_and_make_no_risk_known():
    mean = dataclasses.replace(residuals(), log_ratios={"peak": tuple(np.array(residuals().log_ratios["peak"]) + 0.2)})
    theirs = dataclasses.replace(mean, framework="Theirs", origin="their peaks")
    margin = MemoryMargin(0.05, theirs)
    assert MemoryMargin(0.05, mean).is_known
    assert not margin.is_known
    assert "400 residuals in 200 groups (their peaks) are of Theirs" in margin.note()
    assert "too few" not in margin.note()
    assert "Student's t with 2 degrees" in margin.note()
    # No mean is taken over, but what it is counts to the spread: 2.92 is 95 % of Student's t with two degrees.
    assert peak(margin.needed(ONE)) == pytest.approx(7e9 * np.exp(2.92 * np.hypot(0.1, 0.2)), rel=5e-3)


def test_stages_whose_peaks_were_measured_have_no_risk_by_the_count():
    full = stage((0, 2), memory_bytes=16e9)
    plan = example_plan(stages=(full, stage((3, 3), memory_bytes=8e9)))
    margin = MemoryMargin(0.01, residuals())
    (note,) = with_memory_note(plan, margin, CLUSTER, [0]).notes
    assert "the peaks of 1 of this plan's 2 stages were measured; the fullest of this plan's other stages has" in note
    assert float(note.split()[-1]) < 1e-3
    (note,) = with_memory_note(plan, margin, CLUSTER, [0, 1]).notes
    assert note.endswith("the peaks of 2 of this plan's 2 stages were measured")


@pytest.mark.parametrize("risk", [0.0, 0.5, -1.0, float("nan")])
def test_a_risk_is_above_0_and_below_a_half(risk):
    with pytest.raises(ValueError, match=r"must be above 0 and below 0\.5"):
        MemoryMargin(risk)
