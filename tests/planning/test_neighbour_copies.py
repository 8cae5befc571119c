"""Copies of training state on neighbours' hosts: who keeps whose, what they cost, and how often they are made."""

import dataclasses
import re

import numpy as np
import pytest
from click.testing import CliRunner

from alpa_dejavu.cli.main import main
from alpa_dejavu.planning.changed.neighbour_copies import neighbour_copies
from alpa_dejavu.problem import HostMemory, Link, Run
from alpa_dejavu.testing import example_cluster
from models import chain, planned, space

GB = 1e9
LINK = Link(1e-3, 2 * GB)
DAY_S = 86400.0


def plan_of(stages):
    """A plan of stages with these hosts, logical meshes and ZeRO levels, a layer each, on hosts of two devices."""
    made = planned(chain(len(stages)), example_cluster(num_hosts=2, devices_per_host=2), space(hosts=2), Run(4)).plan
    (one, *_) = made.stages
    wanted = [
        dataclasses.replace(one, layers=(n, n), hosts=hosts, logical_mesh=mesh, zero=zero,
                            submesh=dataclasses.replace(one.submesh, num_hosts=len(hosts), devices_per_host=2))
        for n, (hosts, mesh, zero) in enumerate(stages)
    ]  # fmt: skip
    return dataclasses.replace(made, stages=tuple(wanted), step_s=0.5)


def cluster(memory_bytes=None, num_hosts=3, **slow):
    made = example_cluster(num_hosts=num_hosts, devices_per_host=2)
    memory = None if memory_bytes is None else HostMemory(memory_bytes, 100 * GB, 10 * GB, 20 * GB)
    names = [host.name for host in made.hosts]
    links = tuple(tuple(slow.get("links", {}).get((a, b), LINK) for b in range(num_hosts)) for a in range(num_hosts))
    hosts = tuple(dataclasses.replace(host, memory=memory) for host in made.hosts)
    assert names == [f"host-{n}" for n in range(num_hosts)]
    return dataclasses.replace(made, hosts=hosts, links=links, media=slow.get("media", {}))


PLAN = plan_of([(("host-0",), (2, 1), 0), (("host-1",), (1, 2), 0), (("host-2",), (2, 1), 0)])
STATE = np.array([[1 * GB, 2 * GB], [2 * GB, 4 * GB], [0.5 * GB, 1 * GB]])


def test_each_host_sends_what_its_stages_have_to_the_next_one():
    made = neighbour_copies(PLAN, cluster(), STATE, 30 * DAY_S)
    assert made.neighbours == {"host-0": "host-1", "host-1": "host-2", "host-2": "host-0"}
    assert [each.sent_bytes for each in made.hosts] == [3 * GB, 6 * GB, 1.5 * GB]
    assert sum(each.memory_bytes for each in made.hosts) == 4 * STATE.sum()
    # The busiest end sends 6 GB, while no host takes in more than that.
    assert made.copy_s == pytest.approx(1e-3 + 3.0)
    assert made.between_s == 10 * DAY_S
    known = neighbour_copies(PLAN, cluster(memory_bytes=100 * GB), STATE, 30 * DAY_S)
    assert known.copy_s == pytest.approx(made.copy_s + 6 / 20)


def test_a_slow_link_is_not_taken():
    slow = Link(1e-3, 0.1 * GB)
    made = neighbour_copies(PLAN, cluster(links={(1, 2): slow, (2, 1): slow}), STATE, 30 * DAY_S)
    assert made.neighbours["host-1"] == "host-0"
    assert made.neighbours["host-2"] == "host-0"


def test_what_data_parallel_hosts_have_alike_is_not_sent():
    alike = plan_of([(("host-0", "host-1", "host-2"), (6, 1), 0)])
    made = neighbour_copies(alike, cluster(), STATE[:1], 30 * DAY_S)
    assert (made.neighbours, made.copy_s, made.every) == ({}, 0.0, 1)
    assert [each.memory_bytes for each in made.hosts] == [6 * GB, 6 * GB, 0.0]
    divided = plan_of([(("host-0", "host-1"), (4, 1), 2)])
    made = neighbour_copies(divided, cluster(), STATE[:1], 30 * DAY_S)
    # ZeRO divides the optimizer's state, of which each host has half.
    assert [each.sent_bytes for each in made.hosts] == [1 * GB, 1 * GB]
    assert made.copy_s == pytest.approx(1e-3 + 0.5)


@pytest.mark.parametrize("days", [0.001, 0.1, 30.0])
def test_the_steps_between_copies_are_those_that_cost_least_of_all(days):
    made = neighbour_copies(PLAN, cluster(), STATE, days * DAY_S)

    def lost(every):
        # Of each step: its share of a copy, and of the half interval that a failure undoes.
        return made.copy_s / every + every * PLAN.step_s / 2 * PLAN.step_s / made.between_s

    best = min(range(1, 20_000), key=lost)
    assert made.every == best
    assert (made.step_s, made.lost_s) == (made.copy_s / best, best * PLAN.step_s / 2)
    assert neighbour_copies(PLAN, cluster(), STATE, days * DAY_S, every=7).every == 7


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"every": 0}, "every is 0, but must be a whole number of at least 1"),
        ({"host_fails_every_s": 0.0}, "host_fails_every_s is 0.0, but must be a finite number above 0"),
        ({"cluster": cluster(memory_bytes=11 * GB)}, r"host host-1 has 10.24 GiB of memory, but must have 11.18 GiB"),
        ({"cluster": cluster(memory_bytes=16 * GB)}, "no neighbour of host-0 has 5.59 GiB of host memory left"),
        ({"plan": plan_of([(("host-0",), (2, 1), 0)])}, "the plan is on host-0 alone, but must be on two hosts"),
    ],
)
def test_what_cannot_be_is_said(wrong, said):
    given = {"plan": PLAN, "cluster": cluster(), "state": STATE, "host_fails_every_s": DAY_S}
    with pytest.raises(ValueError, match=said):
        neighbour_copies(**{**given, **wrong})


def test_the_command_says_what_copies_cost():
    asked = ["plan", "--model", "tanh_layers:trained", "--cluster", "p3.16xlarge", "--hosts", "2", "--batch", "4096"]
    asked += ["--layers", "4", "--micro-batches", "1", "--replicas", "16"]
    done = CliRunner().invoke(main, [*asked, "--host-fails-every", "30", "--copy-every", "7"])
    assert done.exit_code == 0, done.output
    assert "hosts of its stages" in done.output
    assert re.search(r"a copy +\S+ us, after every 7 steps\n", done.output)
    assert re.search(r"steps on average, every 15 days", done.output)
    refused = (["--copy-every", "3"], "must come with --host-fails-every"), (["--host-fails-every", "0"], "is 0.0")
    for wrong, why in refused:
        done = CliRunner().invoke(main, [*asked, *wrong])
        assert done.exit_code != 0
        assert why in " ".join(done.output.split())


def test_all_go_over_a_shared_medium_one_after_the_other():
    shared = dataclasses.replace(LINK, shares=("switch",))
    links = {(a, b): shared for a in range(3) for b in range(3)}
    made = neighbour_copies(PLAN, cluster(links=links, media={"switch": 2 * GB}), STATE, 30 * DAY_S)
    assert made.copy_s == pytest.approx(10.5 / 2)
