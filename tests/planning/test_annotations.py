"""What is said of a chosen plan: how sure it is, and which hosts it leaves unused."""

import dataclasses

import pytest

import unlike
from alpa_dejavu._util import units
from alpa_dejavu.planning import plan
from alpa_dejavu.planning._annotations import Confidence, UnusedHosts
from alpa_dejavu.problem import Link, Run
from alpa_dejavu.testing import example_cluster
from models import chain, planned, task_of

MODEL, RUN = chain(4, flop=1e9, parameter_bytes=1e7, activation_bytes=1e6, exchanged=(1e6,)), Run(8)


def slowly_linked(hosts):
    """Hosts that are so far from each other that one of them alone is as good as all."""
    cluster = example_cluster(hosts)
    slow = Link(1e-3, 1e7)
    links = tuple(tuple(slow if a != b else link for b, link in enumerate(row)) for a, row in enumerate(cluster.links))
    return dataclasses.replace(cluster, links=links)


def annotated(annotation, cluster, **how):
    return plan(task_of(MODEL, cluster, 8, RUN, **how), annotations=[annotation]).plan


def test_a_plan_says_which_hosts_it_leaves_unused_and_what_all_would_take():
    made = annotated(UnusedHosts(), slowly_linked(3))
    (note,) = made.notes
    (used,) = {host for stage in made.stages for host in stage.hosts}
    unused = [f"host-{n}" for n in range(3) if f"host-{n}" != used]
    assert note.startswith(f"{', '.join(unused)} are left unused: the best plan found that uses all devices takes ")
    assert note.endswith(f"s, this one {units.seconds(made.step_s)}")
    whole_s = float(note.split("takes ")[1].split()[0])
    assert whole_s > made.step_s


def test_one_host_is_left_unused_in_the_singular_and_many_are_counted():
    (one,) = annotated(UnusedHosts(), slowly_linked(2)).notes
    assert " is left unused: " in one
    (many,) = annotated(UnusedHosts(), slowly_linked(12)).notes
    assert "... (11 hosts) are left unused: " in many


def test_nothing_is_said_where_all_hosts_are_used():
    cluster = example_cluster(2)
    made = annotated(UnusedHosts(), cluster, communication="free")
    assert {host for stage in made.stages for host in stage.hosts} == {host.name for host in cluster.hosts}
    assert made.notes == ()


def test_the_seconds_that_are_said_are_those_of_unlike_hosts_too():
    where = unlike.cluster([unlike.host("a", devices=1), unlike.host("b", devices=1), unlike.host("c", 1e8, devices=1)])
    (note,) = annotated(UnusedHosts(), where).notes
    assert note.startswith("c is left unused: the best plan found that uses all devices takes ")


@pytest.mark.parametrize("cluster", [example_cluster(2), unlike.islands()], ids=["alike", "unlike"])
def test_a_plan_is_as_sure_as_the_plans_say_that_it_was_compared_with(cluster):
    result = plan(task_of(MODEL, cluster, 8, RUN), annotations=[Confidence()])
    sure = result.confidence
    assert sure.candidates > len(result.runners_up) >= 1
    assert 0 < sure.probability <= 1
    assert sure.interval_s[0] < result.plan.step_s < sure.interval_s[1]
    assert plan(task_of(MODEL, cluster, 8, RUN), annotations=()).confidence is None


def test_plans_that_cost_more_are_no_rivals_of_the_cheapest():
    hosts = [*(unlike.host(name, price=8.0) for name in "ab"), *(unlike.host(name, 0.5e12, price=1.0) for name in "cd")]
    where = unlike.cluster(hosts)
    fast, cheap = (planned(MODEL, where, 8, RUN, objective=objective) for objective in ("time", "price"))
    assert cheap.price_per_step <= fast.price_per_step
    assert cheap.confidence.candidates < fast.confidence.candidates
