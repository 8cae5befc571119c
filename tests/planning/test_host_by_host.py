"""Stages that fill one host after the other: each cut is priced as it is where the stages are placed."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import unlike
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.planning import GivenStages, given_stages, plan
from alpa_dejavu.planning.search._candidate import Candidate, simulated
from alpa_dejavu.planning.search._packing import host_by_host
from alpa_dejavu.problem import Link, Run, Slicing, StageChoice
from alpa_dejavu.slicing import slicer
from alpa_dejavu.testing import example_cluster
from models import chain, costs_of, product, space, task_of

CLUSTER = example_cluster(num_hosts=2, devices_per_host=2, memory_bytes=2.0**38)
RUN = Run(16)


def uneven(rng, num_layers=6):
    """Layers of 1 to 3 GFLOP, behind each of which 0 to 60 MB cross; dividing one among devices costs a lot."""
    model = chain(num_layers, parameter_bytes=1e9, exchanged=(3e8,))
    flop, sent = rng.integers(1, 4, num_layers) * 1e9, rng.integers(0, 4, num_layers) * 2e7
    layers = [
        dataclasses.replace(layer, forward=product(one), backward=product(2 * one))
        for layer, one in zip(model.layers, flop, strict=True)
    ]
    tensors = [
        dataclasses.replace(one, num_bytes=float(sent[min(one.producer, 2 * num_layers - 2 - one.producer)]))
        if one.role == "activation"
        else one
        for one in model.tensors
    ]
    return dataclasses.replace(model, layers=tuple(layers), tensors=tuple(tensors))


def all_plans(costs):
    """Every slicing that is allowed, simulated where Alpa would place it."""
    num_layers = costs.model.num_layers
    offered = [
        (s, c) for s, row in enumerate(costs.space.configs) for c, config in enumerate(row) if config is not None
    ]
    sizes = [submesh.num_devices for submesh in costs.space.submeshes]
    for cuts in itertools.product((False, True), repeat=num_layers - 1):
        starts = [0, *(n + 1 for n, cut in enumerate(cuts) if cut)]
        ends = [*(start - 1 for start in starts[1:]), num_layers - 1]
        for chosen in itertools.product(offered, repeat=len(starts)):
            if sum(sizes[s] for s, _ in chosen) != costs.cluster.num_devices:
                continue
            stages = tuple(
                StageChoice(first, last, *what) for first, last, what in zip(starts, ends, chosen, strict=True)
            )
            if np.isfinite(costs.problem.total_s(stages)):
                yield simulated(Candidate(costs, Slicing(stages, 0.0, 0.0, 0, 0.0)))


@pytest.mark.parametrize("seed", range(12))
def test_plans_are_within_two_percent_of_all_plans(seed):
    costs = costs_of(uneven(np.random.default_rng(seed)), CLUSTER, space(hosts=2, devices=2), RUN)
    best_s = min(one.step_s for one in all_plans(costs))
    assert costs.sliced(slicer("dynamic")).step_s <= 1.02 * best_s


def problem_of(costs, senders_wait=False):
    return host_by_host(costs.problem, costs.table, costs.cluster, costs.space, senders_wait)


def test_the_objective_is_that_of_the_stages_on_their_hosts():
    costs = costs_of(uneven(np.random.default_rng(1)), CLUSTER, space(hosts=2, devices=2), RUN)
    found = problem_of(costs)
    slicing = slicer("dynamic").slice(found.problem)
    own, hosts = found.answer(slicing)
    taken = costs.table.interstage_s(own.stages, costs.space, hosts)
    # What crosses a cut counts for the stage behind it: forward as it takes it in, backward as the one before does.
    back = [0.0, *(backward for _, backward in taken[:-1])]
    each = [
        costs.table.costs_s[stage.entry] + ahead + behind
        for stage, (ahead, _), behind in zip(own.stages, taken, back, strict=True)
    ]
    once = sum(costs.table.per_step_s[stage.entry] for stage in own.stages)
    assert slicing.cost_s == pytest.approx(sum(each) + (RUN.num_micro_batches - 1) * max(each) + once)
    assert [len(set(hosts[:2])), len(set(hosts[2:]))] == [1, 1], "two stages of one device fill each host"


def test_hosts_of_unlike_kinds_are_filled_one_after_the_other():
    cluster = unlike.two_and_two()
    costs = costs_of(uneven(np.random.default_rng(3)), cluster, search_space(cluster, 8), RUN)
    found = problem_of(costs)
    own, hosts = found.answer(slicer("dynamic").slice(found.problem))
    kinds = [costs.space.hosts[stage.submesh] for stage in own.stages]
    rates = [[cluster.hosts[n].device.rate("float32") for n in on] for on in hosts]
    assert rates == [[cluster.hosts[n].device.rate("float32") for n in on] for on in kinds]
    taken = [0] * len(cluster.hosts)
    for stage, on in zip(own.stages, hosts, strict=True):
        for host in on:
            taken[host] += costs.space.submeshes[stage.submesh].devices_per_host
    assert all(n <= host.num_devices for n, host in zip(taken, cluster.hosts, strict=True))
    by_rule = simulated(Candidate(costs, own))
    assert simulated(Candidate(costs, own, hosts)).step_s <= by_rule.step_s * (1 + 1e-9)


def with_unlike_weights(rng, num_layers=5):
    """Layers of 2 to 8 GFLOP, with 0.1 MB to 1 GB of weights each; 0.1 to 100 MB cross between two of them."""
    model = chain(num_layers, exchanged=(3e6,))
    flop = rng.integers(1, 5, num_layers) * 2e9
    sent, kept = 10.0 ** rng.uniform(5, 8, num_layers), 10.0 ** rng.uniform(5, 9, num_layers)
    layers = [
        dataclasses.replace(layer, forward=product(one), backward=product(2 * one))
        for layer, one in zip(model.layers, flop, strict=True)
    ]

    def sized(tensor):
        if tensor.role == "input":
            return tensor
        if tensor.role == "activation":
            return dataclasses.replace(
                tensor, num_bytes=float(sent[min(tensor.producer, 2 * num_layers - 2 - tensor.producer)])
            )
        return dataclasses.replace(tensor, num_bytes=float(kept[tensor.users[0]] * (1 + (tensor.role == "optimizer"))))

    return dataclasses.replace(model, layers=tuple(layers), tensors=tuple(map(sized, model.tensors)))


def four_hosts(rng):
    """Equal hosts, each pair of which has a rate of its own, from 0.1 to 30 GB/s."""
    hosts = [unlike.host(name, devices=1, memory_bytes=2.0**38) for name in "abcd"]
    rates = {frozenset(pair): 10.0 ** rng.uniform(8, 10.5) for pair in itertools.combinations("abcd", 2)}
    return unlike.cluster(hosts, lambda a, b: Link(1e-5, rates[frozenset((a.name, b.name))]))


def planned_on_four(seed):
    rng = np.random.default_rng(seed)
    task = task_of(with_unlike_weights(rng), four_hosts(rng), 4, Run(8), communication="links")
    return task, plan(task, annotations=()).plan


def least_s(task, made):
    """The least seconds of the plan's stages on the hosts in every order."""
    stages, found = given_stages(made), set()
    for order in itertools.permutations("abcd"):
        names = dict(zip("abcd", order, strict=True))
        placed = [dataclasses.replace(one, hosts=tuple(names[host] for host in one.hosts)) for one in stages]
        given = dataclasses.replace(task, chooser=GivenStages(tuple(placed)))
        found.add(plan(given, annotations=()).plan.step_s)
    return min(found)


@pytest.mark.parametrize("seed", [0, 3, 10, 19, 31])
def test_no_order_of_the_hosts_is_faster(seed):
    task, made = planned_on_four(seed)
    assert made.step_s <= least_s(task, made) * (1 + 1e-9)


@pytest.mark.parametrize("seed", [10, 31])
def test_that_takes_exchanges(monkeypatch, seed):
    """The closed form by which slicers choose takes other hosts here."""
    monkeypatch.setattr("alpa_dejavu.planning.search._polish._orders", lambda count: [])
    task, made = planned_on_four(seed)
    assert made.step_s > least_s(task, made) * 1.001


def test_small_parts_of_a_rack_are_left_out():
    """On two hosts of 72 stages of 1 and 2 devices would begin at 108 devices; hosts of 8 keep theirs."""
    for devices, smallest in ((72, 4), (8, 1)):
        cluster = example_cluster(num_hosts=2, devices_per_host=devices, memory_bytes=2.0**38)
        costs = costs_of(chain(4), cluster, search_space(cluster, 8), RUN)
        by_hosts = problem_of(costs)
        sizes = [costs.space.submeshes[s].num_devices for s in by_hosts.submesh]
        assert min(sizes) == smallest
        assert (devices // 2, devices // 2) in zip(sizes, by_hosts.begin.tolist(), strict=True)


def test_senders_that_wait_have_their_sends_in_their_seconds():
    costs = costs_of(uneven(np.random.default_rng(1)), CLUSTER, space(hosts=2, devices=2), RUN)
    plain, waiting = problem_of(costs), problem_of(costs, senders_wait=True)
    offered = np.isfinite(plain.problem.costs_s)
    more = np.where(offered, waiting.problem.costs_s, 0.0) - np.where(offered, plain.problem.costs_s, 0.0)
    sent = costs.table.transfer
    at = {(int(s), int(begin)): n for n, (s, begin) in enumerate(zip(plain.submesh, plain.begin, strict=True))}
    inside, between = (sent.seconds(ends, 1).sum(axis=0) for ends in ((0, 0), (0, 1)))
    assert more[1, 2, at[0, 0], 0] == pytest.approx(inside[3]), "the next device is of the same host"
    assert more[1, 2, at[0, 1], 0] == pytest.approx(between[3]), "the next device is the first of another one"
    assert more[1, 5, at[0, 1], 0] == 0, "nothing is sent by the last stage"


def test_a_slicing_that_leaves_gaps_is_no_answer():
    costs = costs_of(chain(2), CLUSTER, space(hosts=2, devices=2), RUN)
    found = problem_of(costs)
    last = int(np.flatnonzero((found.submesh == 0) & (found.begin == 1))[0])
    apart = (StageChoice(0, 0, last - 1, 0), StageChoice(1, 1, last - 1, 0))
    assert found.answer(Slicing(apart, found.problem.sites.crossing_s.max(), 0.0, 0, 0.0)) is None
    assert found.answer(Slicing((), float("inf"), float("inf"), 0, 0.0)) is None


@pytest.mark.parametrize(
    "cluster",
    [example_cluster(1, 4), example_cluster(4, 1), dataclasses.replace(CLUSTER, cores=2)],
    ids=["one host", "one device each", "one CPU"],
)
def test_where_there_are_no_hosts_to_fill_there_is_no_such_problem(cluster):
    per_host = cluster.hosts[0].num_devices
    costs = costs_of(chain(4), cluster, space(hosts=len(cluster.hosts), devices=per_host), RUN)
    assert problem_of(costs) is None
