"""Measuring only what decides: what a measurement is worth, and when no more are made. Nothing is compiled here."""

import dataclasses
import re

import numpy as np
import pytest

import unlike
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.memory_margin import COUNTED
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning import Decisive
from alpa_dejavu.planning import plan as plan_of
from alpa_dejavu.planning.search.uncertainty import confidence
from alpa_dejavu.planning.search.uncertainty._confidence import gain_s, most_worthwhile
from alpa_dejavu.planning.task import GivenSpace
from alpa_dejavu.problem import NoPlanError, Run
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from models import chain, planned, space, task_of
from plans import without_draws

CLUSTER, SPACE, RUN = example_cluster(1, memory_bytes=2.0**34), space(), Run(8)
MODEL = chain(6, flop=1e9, activation_bytes=1e4, parameter_bytes=1e8, exchanged=(2e5,) * 4)


def two_plans(seed=0, count=4000, spread=0.3):
    """A plan whose step is one stage's, and one of a step that is known."""
    error = spread * np.random.default_rng(seed).standard_normal(count)
    return np.stack([np.exp(error), np.full(count, 1.0)], axis=1), error


def test_what_a_measurement_gains_is_what_choosing_after_it_saves():
    steps, error = two_plans()
    expected = min(steps.mean(axis=0)) - np.minimum(steps[:, 0], 1.0).mean()
    assert gain_s(steps, error) == pytest.approx(expected, rel=0.02)


def test_the_largest_gain_for_a_second_of_measuring_is_next():
    steps, error = two_plans()
    noise = np.random.default_rng(2).standard_normal(len(error))
    errors = np.stack([noise, error, error + 0.2 * noise], axis=1)
    assert most_worthwhile(steps, errors, np.array([1.0, 1.0, 1.0]), 60.0) == 1
    assert most_worthwhile(steps, errors, np.array([1.0, 30.0, 1.0]), 60.0) == 2
    assert most_worthwhile(steps, errors, np.array([1.0, 99.0, 99.0]), 60.0) is None
    assert most_worthwhile(steps, errors[:, :1], np.ones(1), 60.0) is None
    assert most_worthwhile(steps, errors[:, :0], np.ones(0), 60.0) is None


def truth(factors):
    """A made-up cluster whose classes of work take other times than predicted; by the table's own arrays."""
    table = cost_table(MODEL, CLUSTER, SPACE, RUN, CostModels(AnalyticLatency(), AlphaBeta()))
    compute, collective = factors
    true = dataclasses.replace(
        table,
        compute_forward_s=table.compute_forward_s * compute,
        compute_backward_s=table.compute_backward_s * compute,
        collective_forward_s=table.collective_forward_s * collective,
        collective_backward_s=table.collective_backward_s * collective,
    )
    return true, true.compute_s + true.collective_s


def decided(measure, budget_s=60.0, model=MODEL):
    chooser = Decisive(measure, budget_s, seconds=lambda: 0.0)
    return planned(model, CLUSTER, SPACE, RUN, chooser=chooser, margin=COUNTED).plan


def counts(plan):
    said = r"(\d+) of (\d+) candidate stages were measured in .* s of .* s \((\d+) stages were offered"
    return tuple(map(int, re.match(said, plan.notes[0]).groups()))


def true_step_s(plan, true):
    """What a plan takes on the made-up cluster."""
    problem = true.slicing_problem(CLUSTER, SPACE, RUN)
    costs, once = [], 0.0
    for stage in plan.stages:
        s = SPACE.submeshes.index(stage.submesh)
        config = next(c for c, config in enumerate(SPACE.configs[s]) if config and config.shape == stage.logical_mesh)
        costs.append(problem.costs_s[(*stage.layers, s, config)])
        once += problem.once_s[(*stage.layers, s, config)]
    return sum(costs) + (RUN.num_micro_batches - 1) * max(costs) + once


@pytest.mark.parametrize("factors", [(1.0, 1.0), (1.0, 6.0), (5.0, 1.0), (0.5, 3.0)])
def test_few_measurements_find_a_plan_that_is_nearly_the_best(factors):
    true, micro_batch_s = truth(factors)
    asked = []

    def measure(stage):
        asked.append(stage)
        return float(micro_batch_s[stage.first, stage.last, stage.submesh, stage.config])

    plan = decided(measure)
    best = slicer("dynamic").slice(true.slicing_problem(CLUSTER, SPACE, RUN)).cost_s
    measured, seen, offered = counts(plan)
    assert measured == len(asked) == len(set(asked))
    assert 0 < measured <= seen < offered
    assert measured <= 12
    assert true_step_s(plan, true) <= 1.1 * best
    if factors == (1.0, 6.0):
        unmeasured = planned(MODEL, CLUSTER, SPACE, RUN).plan
        assert true_step_s(unmeasured, true) > 1.1 * best, "else there was nothing to find"


def test_stages_that_cannot_be_measured_are_asked_for_once_and_said():
    asked = []
    plan = decided(asked.append)
    assert len(asked) == len(set(asked)) > 0
    assert f"{len(asked)} couldn't be measured" in plan.notes[0]
    same = planned(MODEL, CLUSTER, SPACE, RUN).plan
    assert plan.layer_ids == same.layer_ids
    assert plan.step_s == pytest.approx(same.step_s)


@pytest.mark.parametrize("cores", [None, 4], ids=["own", "shared"])
def test_a_stage_on_several_nodes_of_one_cpu_is_not_measured_in_one_process(cores):
    link = example_cluster(1).links[0][0]
    cluster = dataclasses.replace(example_cluster(2, 2, memory_bytes=2.0**34), cores=cores, links=((link, link),) * 2)
    offered = space(hosts=2, devices=2)
    asked = set()

    def measure(stage):
        asked.add(offered.submeshes[stage.submesh].num_hosts)

    planned(MODEL, cluster, offered, RUN, chooser=Decisive(measure, 60.0, seconds=lambda: 0.0), margin=COUNTED)
    assert (2 in asked) is (cores is None)
    assert asked


@pytest.mark.parametrize("cores", [None, 4], ids=["own", "shared"])
@pytest.mark.parametrize("sites", [True, False], ids=["sites", "no sites"])
def test_on_unlike_hosts_a_plan_is_timed_as_without_measurements(sites, cores):
    hosts = dataclasses.replace(unlike.two_and_two(), cores=cores)
    model, offered = chain(6, flop=1e8, activation_bytes=1e6), GivenSpace(space(hosts=4, devices=2), by_kinds=sites)
    task = dataclasses.replace(task_of(model, hosts, 4, RUN, communication="links"), space=offered)
    same = plan_of(task).plan
    plan = plan_of(dataclasses.replace(task, chooser=Decisive(lambda stage: None, 0.0))).plan
    if sites:
        assert without_draws(plan) == without_draws(same)
        assert plan.step_s == pytest.approx(same.step_s)
    else:  # other numbers of stages and of hosts are for the search that measures nothing
        assert plan.step_s >= same.step_s * (1 - 1e-9)
    low, high = plan.confidence.interval_s
    assert low < plan.step_s < high


def test_a_stage_that_changes_nothing_gains_nothing():
    steps, _ = two_plans()
    other = np.random.default_rng(1).standard_normal(len(steps))
    assert abs(gain_s(steps, other)) < 0.01 * gain_s(*two_plans())
    assert gain_s(steps[:, :1], other) == 0.0, "there is nothing to choose"
    assert gain_s(steps, np.zeros(len(steps))) == 0.0, "it is known already"
    shared = steps[:, :1] * np.array([[1.0, 1.2]])
    assert gain_s(shared, np.log(steps[:, 0])) == pytest.approx(0.0, abs=1e-9), "both plans have it"


def test_measuring_makes_the_plan_surer():
    _, micro_batch_s = truth((1.0, 1.0))
    before = decided(lambda stage: None, budget_s=0.0)
    after = decided(lambda stage: float(micro_batch_s[stage.first, stage.last, stage.submesh, stage.config]))
    assert counts(before)[0] == 0
    assert after.confidence.probability > before.confidence.probability
    widths = [plan.confidence.interval_s[1] / plan.confidence.interval_s[0] for plan in (before, after)]
    assert widths[1] < 0.7 * widths[0]


def test_on_unlike_hosts_all_plans_that_are_compared_are_simulated():
    task = task_of(chain(6, flop=1e8, activation_bytes=1e6), unlike.two_and_two(), 4, RUN)
    seen = []

    def look(plan, chosen):
        seen.extend(chosen.compared)
        return plan

    plan_of(task, annotations=[look])
    assert len(seen) > 1
    assert all(one.simulated_s is not None for one in seen)
    assert plan_of(task).plan.confidence == confidence(seen)


def test_a_choice_of_one_plan_needs_no_measurement():
    plan = decided(lambda stage: pytest.fail("nothing to decide"), 0.0, chain(1))
    assert counts(plan)[0] == 0


def test_what_does_not_fit_says_so():
    with pytest.raises(NoPlanError, match="doesn't fit into memory"):
        decided(lambda stage: 1.0, model=chain(6, parameter_bytes=1e15))
