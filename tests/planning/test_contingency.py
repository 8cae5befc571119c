"""What is run without a host: planned with the plan, on what is left, moving no more than it must."""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest

import models
import unlike
from alpa_dejavu.calibration.history import corrected
from alpa_dejavu.clusters.changed_cluster import slowed, without
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.planning import plan
from alpa_dejavu.planning.changed.replanning import fallback
from alpa_dejavu.plans.plan_file import plan_text, read_plan, write_plan
from alpa_dejavu.problem import Link, Run, StepCorrection, StridedReads
from alpa_dejavu.testing import example_cluster
from models import chain, space

planned = functools.partial(models.planned, contingencies=True)
task_of = functools.partial(models.task_of, contingencies=True)
MODEL = chain(8, flop=1e12, parameter_bytes=1e6, activation_bytes=1e5)


def plan_for(cluster, model=MODEL):
    return planned(model, cluster, space(hosts=len(cluster.hosts)), Run(8)).plan


def devices_used(stages):
    hosts = [(host, stage.submesh.devices_per_host) for stage in stages for host in stage.hosts]
    return {name: sum(devices for host, devices in hosts if host == name) for name, _ in hosts}


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_every_host_may_be_lost(hosts):
    cluster = example_cluster(num_hosts=hosts)
    made = plan_for(cluster)
    assert list(made.contingencies) == [host.name for host in cluster.hosts]
    for lost, other in made.contingencies.items():
        assert [stage.layers[0] for stage in other.stages] == [0, *(s.layers[1] + 1 for s in other.stages[:-1])]
        assert other.stages[-1].layers[1] == 7
        assert devices_used(other.stages) == dict.fromkeys(set(made.contingencies) - {lost}, 4)
        assert other.unused == ()
        assert other.step_s > made.step_s
    assert len({other.step_s for other in made.contingencies.values()}) == 1


@pytest.mark.parametrize("hosts", [2, 3])
def test_it_is_what_planning_without_the_host_finds(hosts):
    cluster = example_cluster(num_hosts=hosts)
    made, left = plan_for(cluster), without(cluster, ["host-0"])
    again = planned(MODEL, left, space(hosts=hosts - 1), Run(8)).plan
    assert made.contingencies["host-0"].step_s == pytest.approx(again.step_s, rel=1e-9)


def test_what_does_not_fit_on_fewer_hosts_is_said():
    # 8 layers of 4e8 bytes fit on two hosts of 4 x 1 GiB, but not on one.
    model = chain(8, flop=1e12, parameter_bytes=2.0**28 * 0.9, activation_bytes=1e5)
    made = plan_for(example_cluster(num_hosts=2), model)
    assert made.contingencies == {}
    assert any("nothing fits without any one of its hosts" in note for note in made.notes)


def test_where_memory_is_short_more_micro_batches_are_taken():
    model, cluster = chain(8, flop=1e12, activation_bytes=0.75 * 2.0**30), example_cluster(num_hosts=2)
    task = task_of(model, cluster, 16, Run(2))
    # The same step in two micro-batches alone has nothing to fall back on.
    assert plan(task).plan.contingencies == {}
    made = plan(dataclasses.replace(task, micro_batches=(1, 2, 4, 8))).plan
    assert set(made.contingencies) == {"host-0", "host-1"}
    assert {other.num_micro_batches for other in made.contingencies.values()} <= {4, 8}
    assert fallback(made, "host-0").plan.num_micro_batches == made.contingencies["host-0"].num_micro_batches


def test_a_contingency_is_as_good_as_a_fresh_plan_of_the_same_layers():
    cluster = example_cluster(num_hosts=4)
    task = dataclasses.replace(task_of(MODEL, cluster, 4, Run(16)), micro_batches=(1, 2, 4, 8, 16, 32, 64))
    made = plan(task).plan
    fresh = plan(task.on(without(cluster, ["host-2"]))).plan
    assert made.contingencies["host-2"].step_s <= 1.05 * fresh.step_s


def test_unlike_hosts_each_have_their_own():
    cluster = slowed(example_cluster(num_hosts=3), "host-2", 4.0)
    made = plan_for(cluster)
    fast = made.contingencies["host-2"]
    # Two fast hosts do at least 8/5 of what a fast one and one at a quarter of its rate do together.
    assert fast.step_s < made.contingencies["host-0"].step_s / 1.6
    assert made.contingencies["host-0"].step_s == made.contingencies["host-1"].step_s
    for lost, other in made.contingencies.items():
        assert lost not in devices_used(other.stages)


def test_contingencies_come_back_from_a_file(tmp_path):
    made = plan_for(example_cluster(num_hosts=4))
    path = write_plan(made, tmp_path / "plan.json")
    assert read_plan(path).contingencies == made.contingencies
    assert plan_text(made).count('"iteration_time_s"') == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"plan": 0', '"plan": 7', r"contingencies\.hosts\.host-0\.plan is 7, but there are 1 plans"),
        ('"moved_s": ', '"moved_s": -', r"contingencies\.hosts\.host-0\.moved_s is -.*seconds of at least 0"),
        ('"moved_layers": [', '"moved_layers": [99,', r"moved_layers is \[99"),
        ('"hosts": {\n      "host-0"', '"hosts": {\n      "host-1x"', None),
        ('"unused"', '"unusde"', r"contingencies\.hosts\.host-0 lacks the key 'unused'"),
    ],
)
def test_what_is_wrong_with_them_is_named(tmp_path, old, new, said):
    path = write_plan(plan_for(example_cluster(num_hosts=2)), tmp_path / "plan.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    if said is None:
        assert "host-1x" in read_plan(path).contingencies
    else:
        with pytest.raises(ValueError, match=said):
            read_plan(path)


def test_a_host_that_is_not_there_is_named():
    cluster = example_cluster(num_hosts=2)
    with pytest.raises(ValueError, match=r"has no host 'host-7'; did you mean"):
        without(cluster, ["host-7"])
    with pytest.raises(ValueError, match="nothing is left"):
        without(cluster, ["host-0", "host-1"])
    with pytest.raises(ValueError, match="has no host 'x'"):
        slowed(cluster, "x", 2.0)
    for factor in (0.0, 1e300, math.inf, math.nan):
        with pytest.raises(ValueError, match=rf"{re.escape(repr(factor))} times as slow, but that must be from 1e-06"):
            slowed(cluster, "host-0", factor)
    strided = dataclasses.replace(cluster.hosts[1].device, strided=StridedReads(4.0, 8.0, 9.0), dilated_flop_per_s=6.0)
    strided = dataclasses.replace(strided, uncached_bytes_per_s=10.0)
    hosts = (cluster.hosts[0], dataclasses.replace(cluster.hosts[1], device=strided))
    much = slowed(dataclasses.replace(cluster, hosts=hosts), "host-1", 2.0).hosts[1].device
    assert (much.strided, much.dilated_flop_per_s) == (StridedReads(2.0, 4.0, 9.0), 3.0)
    assert much.uncached_bytes_per_s == 5.0
    slow = slowed(cluster, "host-1", 2.0).hosts
    assert slow[1].device.rate("float32") == cluster.hosts[1].device.rate("float32") / 2
    assert slow[0] == cluster.hosts[0]


def test_a_single_host_has_nothing_to_fall_back_on():
    assert plan_for(example_cluster(num_hosts=1)).contingencies == {}


def test_hosts_that_cannot_be_filled_are_left_out():
    cluster = example_cluster(num_hosts=4)
    model = chain(2, flop=1e12, parameter_bytes=1e6, activation_bytes=1e5)
    every = space(hosts=4)
    pairs = [n for n, submesh in enumerate(every.submeshes) if submesh.num_hosts in (2, 4)]
    chosen = dataclasses.replace(
        every, submeshes=tuple(every.submeshes[n] for n in pairs), configs=tuple(every.configs[n] for n in pairs)
    )
    made = planned(model, cluster, chosen, Run(8)).plan
    other = made.contingencies["host-1"]
    assert len(other.unused) == 1
    assert {*devices_used(other.stages), *other.unused, "host-1"} == {host.name for host in cluster.hosts}


@pytest.mark.parametrize("cluster", [unlike.two_and_two(), unlike.islands(), unlike.two_and_two(devices=4)])
def test_on_unlike_hosts_the_same_costs_say_what_is_run(cluster):
    assert search_space(cluster, 8).hosts is not None
    made = planned(MODEL, cluster, 8, Run(8)).plan
    assert list(made.contingencies) == list("abcd")
    for lost, other in made.contingencies.items():
        used = devices_used(other.stages)
        assert lost not in used
        assert {*used, *other.unused} == {*"abcd"} - {lost}
        assert all(devices <= cluster.hosts[0].num_devices for devices in used.values())
    left = without(cluster, ["d"])
    again = planned(MODEL, left, 8, Run(8)).plan
    assert made.contingencies["d"].step_s == pytest.approx(again.step_s, rel=0.02)


def test_parts_of_one_cpu_share_it_among_fewer():
    cluster = dataclasses.replace(example_cluster(num_hosts=2), cores=4)
    left = without(cluster, ["host-1"])
    assert left.hosts[0].device.rate("float32") == 2 * cluster.hosts[0].device.rate("float32")
    made = plan_for(cluster)
    # The same machine has the same work: only what hosts send each other falls away.
    assert made.contingencies["host-1"].step_s == pytest.approx(made.step_s, rel=0.05)


def test_a_whole_host_is_the_unit_where_there_are_many():
    cluster = example_cluster(num_hosts=20, devices_per_host=2)
    model = chain(20, flop=1e12, parameter_bytes=1e6, activation_bytes=1e5)
    made = planned(model, cluster, space(hosts=20, devices=2), Run(64)).plan
    assert all(stage.submesh.devices_per_host == 2 for stage in made.stages)
    for lost, other in made.contingencies.items():
        assert devices_used(other.stages) == dict.fromkeys(set(made.contingencies) - {lost}, 2)


def test_past_runs_correct_contingencies_too():
    made = plan_for(example_cluster(num_hosts=2))
    twice = corrected(made, StepCorrection(2.0, 0.1, 3, 1)).contingencies["host-0"]
    assert twice.step_s == 2 * made.contingencies["host-0"].step_s
    assert twice.stages[0].forward_s == 2 * made.contingencies["host-0"].stages[0].forward_s
    assert twice.moves == made.contingencies["host-0"].moves


def test_a_lost_host_is_in_no_stage_of_its_own_contingency(tmp_path):
    path = write_plan(plan_for(example_cluster(num_hosts=2)), tmp_path / "plan.json")
    text = path.read_text()
    head, tail = text.split('"contingencies": {\n    "plans"')
    path.write_text(head + '"contingencies": {\n    "plans"' + tail.replace('"host-1"\n', '"host-0"\n'))
    with pytest.raises(ValueError, match=r"contingencies\.hosts\.host-0\.hosts names host-0, which is lost"):
        read_plan(path)


def test_links_stay_those_of_the_hosts():
    links = tuple(tuple(Link(0.0, 1.0 + 10 * a + b) for b in range(3)) for a in range(3))
    cluster = dataclasses.replace(example_cluster(num_hosts=3), links=links)
    left = without(cluster, ["host-1"])
    rates = [[link.bytes_per_s for link in row] for row in left.links]
    np.testing.assert_array_equal(rates, [[1, 3], [21, 23]])
