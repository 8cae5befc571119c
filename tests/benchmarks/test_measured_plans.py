"""What is measured of which plans, and what is made of the figures; nothing runs here."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from _measured_jobs import JOBS, REMAT, ZERO, Job, among_others, drawn, every_plan, label, plan_of
from _measured_report import figures, held_out_regret, job_result, paired_ratio, summary
from _measured_runs import submesh_sizes
from _thread_times import seconds_without_core, thread_seconds
from alpa_dejavu.calibration.measurement import MeasuredPlan
from alpa_dejavu.layers import concrete
from alpa_dejavu.planning import plan_model
from alpa_dejavu.simulation.step import StageTimes, simulate
from alpa_dejavu.testing import example_cluster

CLUSTER = example_cluster(1)  # of 4 devices


@pytest.fixture(scope="module")
def small() -> Job:
    return dataclasses.replace(JOBS["mlp-wide"], batch=8, counts=(1, 2))


def test_every_plan_is_there_once(small):
    plans = every_plan(small, CLUSTER)
    labels = [label(plan) for plan in plans]
    assert len(set(labels)) == len(labels)
    for plan in plans:
        assert sum(submesh_sizes(plan)) == 4
        assert [layer for ids in plan.layer_ids for layer in ids] == [0, 1, 2, 3]
    # Stages on 4; 2, 2; 2, 1, 1 in three orders; 1, 1, 1, 1 devices: cuts times configs. Two devices are cut along the
    # batch, as Alpa likes, both with ZeRO-2 or without, or along operators; four along both, too.
    assert len(labels) == 2 * (7 + 3 * 5 * 5 + 3 * 3 * 5 + 1)


def test_the_chosen_plan_is_the_best_predicted_of_all(small):
    plans = {label(plan): plan.step_s for plan in every_plan(small, CLUSTER)}
    made = [
        plan_model(
            small.model, CLUSTER, batch=small.batch, micro_batches=count, layers=small.layers, remat=REMAT, zero=ZERO
        ).plan
        for count in small.counts
    ]
    ours = min(made, key=lambda plan: plan.step_s)
    assert plans[label(ours)] == pytest.approx(ours.step_s)
    assert ours.step_s <= min(plans.values()) * 1.02
    assert among_others(small, CLUSTER, ours).step_s == pytest.approx(ours.step_s)


def test_plans_are_drawn_by_the_seed(small):
    plans = every_plan(small, CLUSTER)
    some = drawn(plans, 5, seed=1)
    assert some == drawn(plans, 5, seed=1)
    assert some != drawn(plans, 5, seed=2)
    assert [plans.index(plan) for plan in some] == sorted(plans.index(plan) for plan in some)
    assert drawn(plans, 10**6, seed=1) == plans


def test_a_plan_of_alpas_is_found_among_the_others(small):
    forced = {"force_batch_dim_to_mesh_dim": 0}
    stages = [
        {"layers": [0, 1], "submesh": [1, 2], "logical_mesh": [1, 2], "options": forced},
        {"layers": [2, 3], "submesh": [1, 2], "logical_mesh": [2, 1], "options": forced},
    ]
    made = plan_of(small, CLUSTER, 2, stages)
    assert label(made) in [label(plan) for plan in every_plan(small, CLUSTER)]
    stages[0]["options"] = {}
    assert label(plan_of(small, CLUSTER, 2, stages)) == label(made).replace("as 1x2", "as 1x2 free")


@pytest.mark.parametrize("name", JOBS)
def test_a_step_renews_its_state(name):
    job = JOBS[name]
    step, arguments = job.model(job.batch)
    state, loss = jax.eval_shape(step, *arguments)
    assert loss.shape == ()
    assert jax.tree_util.tree_structure(state) == jax.tree_util.tree_structure(arguments[0])
    pairs = zip(jax.tree_util.tree_leaves(state), jax.tree_util.tree_leaves(arguments[0]), strict=True)
    assert all(new.shape == old.shape and new.dtype == old.dtype for new, old in pairs)
    assert job.batch % max(job.counts) == 0


@pytest.mark.parametrize("name", ["mlp-wide", "gpt-long", "mixer", "convolutions"])
def test_numbers_stay_ordinary(name):
    step, arguments = JOBS[name].model(4)
    (weights, momenta), loss = jax.jit(step)(*concrete(arguments))
    assert np.isfinite(float(loss))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves((weights, momenta)))


def test_the_three_jobs_have_at_most_40_plans_each_on_two_devices():
    # One cut for each place between layers; on both devices five ways, as above.
    counts = [len(job.counts) * (job.layers - 1 + 5) for job in JOBS.values() if job.complete]
    assert len(counts) == 3
    assert max(counts) <= 40
    assert len(JOBS) == 12


def test_regret_is_judged_by_other_rounds_than_the_best_was_chosen_by():
    # By the even rounds "lucky" is the best; in the odd ones it is not.
    rounds = {"ours": [[2.0], [2.0]], "lucky": [[1.0], [4.0]], "slow": [[3.0], [3.0]]}
    assert held_out_regret(rounds, "ours", list(rounds)) == pytest.approx(-0.5)
    assert held_out_regret(rounds, "ours", ["ours", "slow"]) == 0.0
    assert np.isnan(held_out_regret({"ours": [[1.0]]}, "ours", ["ours"]))
    assert paired_ratio([[1.0], [2.0], [9.0]], [[2.0], [4.0], [9.0]]) == 0.5


def a_measurement(step_s):
    times = (StageTimes(step_s, 0.0),)
    return MeasuredPlan((step_s,), (1.1 * step_s,), times, ((step_s, 0.0),), 0.0, simulate(times, 1))


def a_result(small, role_of_auto):
    first, second, third = every_plan(small, CLUSTER)[:3]
    plans = {label(plan): plan for plan in (first, second, third)}
    seconds = dict(zip(plans, (1.2, 1.0, 2.0), strict=True))
    runs = {
        "compile_s": dict.fromkeys(plans, 3.0),
        "pinned": {},
        "threads": {},
        "steps": {name: [[value], [value]] for name, value in seconds.items()},
        "waited_for_core": {name: [0.25, 0.75] for name in plans},
        "measured": {name: a_measurement(value) for name, value in seconds.items()},
    }
    names = list(plans)
    roles = {"ours": names[0], "auto": names[role_of_auto]}
    runs["compile_s"][names[2]] = "ValueError: it can't"
    del runs["measured"][names[2]]
    return job_result("small", 9, names[1:], roles, plans, runs), names


def test_a_job_says_regret_rank_and_what_failed(small):
    result, names = a_result(small, 1)
    assert result["best"] == names[1]
    assert (result["rank"], result["measured_plans"]) == (2, 2)
    assert result["regret"] == pytest.approx(0.2)
    assert result["ours_to_auto"] == pytest.approx(1.2)
    assert [row["listed"] for row in result["plans"]] == [False, True, True]
    assert result["plans"][2]["error"] == "ValueError: it can't"
    assert result["plans"][0]["simulation_error"] == pytest.approx(0.0)
    assert result["plans"][0]["simulation_error_of_noted_steps"] == pytest.approx(1 / 1.1 - 1)
    json.dumps(result)


def test_the_summary_is_over_jobs_and_plans(small):
    jobs = [a_result(small, 1)[0], a_result(small, 0)[0]]
    assert jobs[1]["ours_to_auto"] == 1.0
    found = summary(jobs)
    assert found["plans"] == 4
    assert found["median_regret"] == pytest.approx(0.2)
    assert found["median_simulation_error"] == pytest.approx(0.0)
    assert found["median_waited_for_core"] == 0.5
    assert list(found["stages"]) == [4]
    rows = [row["stages"][0] for job in jobs for row in job["plans"][:2]]
    predicted = [row["predicted_forward_s"] + row["predicted_backward_s"] for row in rows]
    ratios = [seconds / own for seconds, own in zip((1.2, 1.0) * 2, predicted, strict=True)]
    assert found["stages"][4] == {"forward_backward": pytest.approx(np.median(ratios)), "per_step": 0.0}
    assert any("median regret of 2 jobs: 20.0%" in line for line in found["lines"])
    assert summary([])["lines"] == []


def test_held_out_regrets_are_judged_by_their_median_and_the_worst():
    jobs = [{"name": name, "held_out_regret": share} for name, share in (("a", -0.01), ("b", 0.029), ("c", 0.12))]
    median, worst = figures(jobs)
    assert (median.measured, median.held) == ("2.9%", True)
    assert (worst.measured, worst.held) == ("12.0% (c)", False)
    assert figures([]) == []


def test_threads_have_computed_and_have_waited_for_cores():
    # The system counts in ticks: however fast the machine is, there is one in the end.
    while max(thread_seconds().values()) == 0:
        sum(range(10**6))
    assert seconds_without_core() >= 0
