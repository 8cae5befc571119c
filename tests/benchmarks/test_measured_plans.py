"""What is measured of which plans, and what is made of the figures; nothing runs here."""

import dataclasses

import jax
import numpy as np
import pytest

from _measured_jobs import JOBS, REMAT, ZERO, Job, among_others, every_plan, label
from _measured_report import held_out_regret, paired_ratio
from _measured_runs import submesh_sizes
from alpa_dejavu.layers import concrete
from alpa_dejavu.planning import plan_model
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


@pytest.mark.parametrize("name", ["mlp-wide", "gpt-long", "mixer", "convolutions"])
def test_numbers_stay_ordinary(name):
    step, arguments = JOBS[name].model(4)
    (weights, momenta), loss = jax.jit(step)(*concrete(arguments))
    assert np.isfinite(float(loss))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree_util.tree_leaves((weights, momenta)))


def test_regret_is_judged_by_other_rounds_than_the_best_was_chosen_by():
    # By the even rounds "lucky" is the best; in the odd ones it is not.
    rounds = {"ours": [[2.0], [2.0]], "lucky": [[1.0], [4.0]], "slow": [[3.0], [3.0]]}
    assert held_out_regret(rounds, "ours", list(rounds)) == pytest.approx(-0.5)
    assert held_out_regret(rounds, "ours", ["ours", "slow"]) == 0.0
    assert np.isnan(held_out_regret({"ours": [[1.0]]}, "ours", ["ours"]))
    assert paired_ratio([[1.0], [2.0], [9.0]], [[2.0], [4.0], [9.0]]) == 0.5
