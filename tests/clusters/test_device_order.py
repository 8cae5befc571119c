"""The order of a stage's hosts: rings go along fast links."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.clusters.device_order import device_order
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.problem import Cluster, Host, Link, Run, SearchSpace
from alpa_dejavu.testing import example_cluster
from models import chain, planned

FAST, SLOW = 10.0, 1.0


def cluster_of(rates):
    device = example_cluster(1).hosts[0].device
    hosts = tuple(Host(f"h{n}", device, 2) for n in range(len(rates)))
    return Cluster("made up", hosts, tuple(tuple(Link(0.0, rate) for rate in row) for row in rates))


def islands(*sizes):
    """Hosts that take turns in their islands."""
    number = [n % len(sizes) for n in range(sum(sizes))]
    return cluster_of([[FAST if a == b else SLOW for b in number] for a in number])


def slow_hops(cluster, order):
    return sum(cluster.links[a][b].bytes_per_s == SLOW for a, b in zip(order, [*order[1:], order[0]], strict=True))


@pytest.mark.parametrize("size", [4, 6, 8, 12])
def test_a_ring_crosses_between_islands_twice_and_no_more(size):
    cluster = islands(size // 2, size // 2)
    order = device_order(cluster, range(size), (size, 1))
    assert sorted(order) == list(range(size))
    assert slow_hops(cluster, range(size)) == size
    assert slow_hops(cluster, order) == 2


def test_rows_are_within_islands_and_columns_between():
    order = device_order(islands(2, 2), [0, 1, 2, 3], (2, 2))
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset({0, 2}), frozenset({1, 3})}


def test_a_ring_goes_the_way_round_that_is_fast():
    ring = [[FAST if b == (a - 1) % 4 else SLOW for b in range(4)] for a in range(4)]
    order = device_order(cluster_of(ring), [0, 1, 2, 3], (4, 1))
    assert slow_hops(cluster_of(ring), order) == 0


def test_hosts_that_are_left_out_do_not_count():
    rates = [[FAST] * 4 for _ in range(4)]
    rates[0][1] = rates[1][0] = SLOW
    assert device_order(cluster_of(rates), [3, 2, 1], (3, 1)) == (3, 2, 1)


def test_two_hosts_and_equal_links_keep_their_order():
    unlike = islands(2, 2)
    assert device_order(unlike, [1, 0], (2, 1)) == (1, 0)
    equal = dataclasses.replace(unlike, links=tuple(tuple(Link(0.0, FAST) for _ in range(4)) for _ in range(4)))
    assert device_order(equal, [2, 0, 3, 1], (4, 1)) == (2, 0, 3, 1)


@given(st.lists(st.floats(0.1, 10.0), min_size=16, max_size=16))
def test_no_order_has_a_better_slowest_hop(rates):
    cluster = cluster_of([rates[4 * n : 4 * n + 4] for n in range(4)])

    def slowest(order):
        return min(cluster.links[a][b].bytes_per_s for a, b in zip(order, [*order[1:], order[0]], strict=True))

    best = max(map(slowest, itertools.permutations(range(4))))
    assert slowest(device_order(cluster, range(4), (4, 1))) == best


def test_a_plan_has_the_hosts_of_a_stage_in_that_order():
    cluster = islands(2, 2)
    space = search_space(cluster, 8)
    assert space.hosts is not None
    (whole,) = {submesh: n for n, submesh in enumerate(space.submeshes) if submesh.num_hosts == 4}.items()
    made = planned(chain(4), cluster, SearchSpace(whole[:1], (space.configs[whole[1]],)), Run(2)).plan
    (stage,) = made.stages
    assert stage.hosts in {("h0", "h2", "h1", "h3"), ("h0", "h2", "h3", "h1")}
