"""The margin of memory: as large as the chosen risk asks for, and what is said where a risk can't be known."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu import NoPlanError
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.memory import StageMemory
from alpa_dejavu.costs.memory_margin import MEMORY_PARTS, MemoryMargin, MemoryResiduals, with_memory_note
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning import GivenStage, estimate, plan_model
from alpa_dejavu.problem import MeshConfig, Run
from alpa_dejavu.testing import example_cluster
from models import chain, planned, space
from plans import example_plan, stage

ONE = StageMemory(*(np.full((1, 1), size) for size in (4e9, 1e9, 2e9)))
CLUSTER = example_cluster(1)
MODEL, RUN = chain(4, parameter_bytes=2.0**20, exchanged=(1e8,) * 4), Run(8)
COUNTED = {"resident": 4e9, "per_micro_batch": 2e9, "temporary": 2e9}


def residuals(count=400, spread=0.1, groups=200, **kinds):
    draws = np.random.default_rng(0).standard_normal(count)
    draws = (draws - draws.mean()) / draws.std(ddof=1)
    return MemoryResiduals({"peak": tuple(spread * draws), **kinds}, groups)


def peak(memory):
    return memory.resident[0, 0] + memory.temporary[0, 0] + memory.per_micro_batch[0, 0]


def test_without_residuals_the_count_is_taken_as_it_is_and_the_risk_is_unknown():
    margin = MemoryMargin()
    assert margin.needed(ONE) is ONE
    assert margin.probability(COUNTED, 16e9) is None
    assert not margin.is_known
    assert margin.note().endswith("not measured: none of each device's is left free")


def test_too_few_residuals_are_said_and_have_the_tails_of_two_degrees_of_freedom():
    margin = MemoryMargin(0.01, residuals(99))
    assert not margin.is_known
    assert "99 measured peaks in 200 groups are too few" in margin.note()
    assert "(100 are needed)" in margin.note()
    assert peak(margin.needed(ONE)) == pytest.approx(7e9 * np.exp(0.1 * 6.9646), rel=5e-3)
    assert MemoryMargin(0.02, residuals(99)).is_known


def test_the_planner_leaves_the_margin_free():
    cluster, _ = narrow()
    larger = MemoryResiduals({"peak": tuple(0.05 + 1e-3 * np.sin(np.arange(200)))}, 50)
    careful = planned(MODEL, cluster, space(), RUN, margin=MemoryMargin(residuals=larger)).plan
    assert fullest_bytes(careful) < cluster.hosts[0].device.memory_bytes / np.exp(0.05)
    assert any("with a probability of at most 1.00%" in note for note in careful.notes)
    much = MemoryResiduals({"peak": (5.0, 5.1, 4.9)}, 3)
    with pytest.raises(NoPlanError, match="are missing"):
        planned(MODEL, cluster, space(), RUN, margin=MemoryMargin(residuals=much))


def fullest_bytes(plan):
    return max(stage.memory_bytes for stage in plan.stages)


def narrow(share_free=0.02):
    """A cluster on which the best plan of all would leave so little free, and that plan."""
    best = planned(MODEL, CLUSTER, space(), RUN, margin=MemoryMargin(free_share=0.0)).plan
    return example_cluster(1, memory_bytes=fullest_bytes(best) / (1 - share_free)), best


def test_a_plan_whose_memory_was_never_measured_leaves_some_free():
    cluster, best = narrow()
    (limit,) = {host.device.memory_bytes for host in cluster.hosts}
    plan = planned(MODEL, cluster, space(), RUN).plan
    assert fullest_bytes(plan) <= 0.95 * limit
    assert {stage.memory_limit_bytes for stage in plan.stages} == {limit}
    assert "memory is counted, not measured: 5 % of each device's is left free" in plan.notes[-1]
    for margin in (0.0, 0.015):
        whole = planned(MODEL, cluster, space(), RUN, margin=MemoryMargin(free_share=margin)).plan
        assert fullest_bytes(whole) == fullest_bytes(best)
    assert whole.notes[-1].endswith("1.5 % of each device's is left free")
    with pytest.raises(NoPlanError, match=r"[MG]iB are left free \(--memory-margin\).*a smaller memory margin"):
        planned(MODEL, cluster, space(), RUN, margin=MemoryMargin(free_share=0.999))


def test_a_hosts_own_margin_stands_until_another_is_asked_for():
    cluster, best = narrow(0.08)
    assert fullest_bytes(planned(MODEL, cluster, space(), RUN).plan) == fullest_bytes(best)
    careful = dataclasses.replace(
        cluster, hosts=tuple(dataclasses.replace(host, memory_margin=0.1) for host in cluster.hosts)
    )
    plan = planned(MODEL, careful, space(), RUN).plan
    assert fullest_bytes(plan) <= 0.9 * careful.hosts[0].device.memory_bytes
    assert "10 % of each device's" in plan.notes[-1]
    again = planned(MODEL, careful, space(), RUN, margin=MemoryMargin(free_share=0.05)).plan
    assert fullest_bytes(again) == fullest_bytes(best)


@pytest.mark.parametrize("margin", [-0.1, 1.0, float("nan")])
def test_a_share_that_is_none_is_refused(margin):
    said = "memory_margin is .*, but must be at least 0 and below 1"
    with pytest.raises(ValueError, match=said):
        MemoryMargin(free_share=margin)
    with pytest.raises(ValueError, match=said):
        plan_model("gpt-125m", "p3.16xlarge", batch=8, memory_margin=margin)
    with pytest.raises(ValueError, match="host host-0: " + said):
        dataclasses.replace(CLUSTER.hosts[0], memory_margin=margin)


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


def test_known_residuals_ask_for_their_quantile():
    margin = MemoryMargin(0.01, residuals())
    assert margin.is_known
    # 99 % of Student's t with 199 degrees of freedom.
    assert peak(margin.needed(ONE)) == pytest.approx(7e9 * np.exp(0.1 * 2.345), rel=2e-3)
    assert margin.probability(COUNTED, 8e9 * np.exp(0.1 * 2.345)) == pytest.approx(0.01, rel=0.05)
    assert margin.note() == "the plan runs out of memory with a probability of at most 1.00%"


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
    counted = dict(zip(MEMORY_PARTS, (4e9, 1e9, 2e9), strict=True))
    assert margin.probability(counted, peak(needed)) == pytest.approx(0.05, rel=0.02)


def test_of_unlike_hosts_each_leaves_its_own_share_free():
    hosts = tuple(dataclasses.replace(host, memory_margin=margin) for host, margin in zip(
        example_cluster(2, memory_bytes=100.0).hosts, (0.5, None), strict=True))  # fmt: skip
    assert [MemoryMargin().usable_bytes(host) for host in hosts] == [50.0, 95.0]
    cluster = dataclasses.replace(example_cluster(2, memory_bytes=100.0), hosts=hosts)
    table = cost_table(MODEL, cluster, search_space(cluster, 4), RUN, CostModels.named(), MemoryMargin())
    assert set(table.memory_limit_bytes) == {100.0}
    assert set(table.usable_bytes) == {50.0, 95.0}


def test_measured_peaks_take_the_place_of_the_share():
    cluster, best = narrow()
    exact = MemoryResiduals({"peak": (-1e-4, 1e-4) * 100}, 100)
    for margin in (None, 0.5):
        plan = planned(MODEL, cluster, space(), RUN, margin=MemoryMargin(residuals=exact, free_share=margin)).plan
        assert fullest_bytes(plan) == fullest_bytes(best)
        assert plan.notes[-1].startswith("the plan runs out of memory with a probability of at most 1.00%")
    assert MemoryMargin(residuals=exact, free_share=0.5).free_share_of(cluster.hosts[0]) == 0.0


def test_a_plan_that_is_given_is_counted_whole():
    cluster, best = narrow()
    stages = [
        GivenStage(*stage.layers, stage.submesh, MeshConfig(stage.logical_mesh, *stage.logical_mesh, zero=stage.zero))
        for stage in best.stages
    ]
    found = estimate(MODEL, cluster, RUN, stages)
    assert found.table.max_n_succ_stages[found.choices[0].entry] >= len(stages) - 1
    assert fullest_bytes(found.plan) == pytest.approx(fullest_bytes(best))


def test_a_plan_says_the_risk_of_its_fullest_stage():
    full = stage((0, 3), submesh=(1, 4), logical=(4, 1), memory_bytes=16e9)
    plan = example_plan(stages=(full,))
    (note,) = with_memory_note(plan, MemoryMargin(0.01, residuals()), CLUSTER).notes
    assert note.endswith("; this plan's fullest stage has one of 0.5")


def test_residuals_of_another_framework_are_a_spread_and_make_no_risk_known():
    mean = dataclasses.replace(residuals(), log_ratios={"peak": tuple(np.array(residuals().log_ratios["peak"]) + 0.2)})
    theirs = dataclasses.replace(mean, framework="Theirs", origin="their peaks")
    margin = MemoryMargin(0.05, theirs)
    assert MemoryMargin(0.05, mean).is_known
    assert not margin.is_known
    assert "400 measured peaks in 200 groups (their peaks) are of Theirs" in margin.note()
    assert "too few" not in margin.note()
    assert "Student's t with 2 degrees" in margin.note()
    # No mean is taken over, but what it is counts to the spread: 2.92 is 95 % of Student's t with two degrees.
    assert peak(margin.needed(ONE)) == pytest.approx(7e9 * np.exp(2.92 * np.hypot(0.1, 0.2)), rel=5e-3)
