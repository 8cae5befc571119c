"""The model by the links of a group: rings along fast links, in two levels, and what shares a medium."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication import COLLECTIVES, AlphaBeta, Group, Links, communication_model
from alpa_dejavu.costs.communication._rings import ring_hops, ring_orders
from alpa_dejavu.problem import Link
from alpa_dejavu.testing import check_communication_model, example_cluster

SIZES = np.array([0.0, 1.0, 1e4, 1e7, 1e9])
FAST, SLOW = Link(1e-5, 1e9), Link(1e-5, 1e8)


def cluster_by(link_of, num_hosts, devices=1, **fields):
    base = example_cluster(num_hosts, devices)
    within = base.links[0][0]
    every = range(num_hosts)
    links = tuple(tuple(within if a == b else link_of(a, b) for b in every) for a in every)
    return dataclasses.replace(base, links=links, **fields)


def seconds(cluster, hosts, collective="all_reduce", num_bytes=1e9, concurrent=1):
    return float(Links().seconds(collective, num_bytes, Group(cluster, tuple(hosts), concurrent)))


def test_conforms_and_is_chosen_by_name():
    check_communication_model(communication_model("links"))
    assert communication_model("links") == Links()
    assert repr(Links()) == "Links()"
    with pytest.raises(ValueError, match="no collective 'gossip'"):
        Links().seconds("gossip", SIZES, Group(example_cluster(), (0,)))


@pytest.mark.parametrize("machine", ["p3.16xlarge", "g4dn.12xlarge"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("hosts", [(0,), (0,) * 2, (0,) * 4, (0, 1), (0, 1, 2, 3), (1, 3)])
@pytest.mark.parametrize("concurrent", [1, 4])
def test_agrees_with_alpha_beta_where_two_levels_do_not_help(machine, collective, hosts, concurrent):
    group = Group(named_cluster(machine, 4), hosts, concurrent)
    assert Links().seconds(collective, SIZES, group) == pytest.approx(AlphaBeta().seconds(collective, SIZES, group))


def test_a_ring_crosses_the_cut_between_islands_twice():
    island = [0, 1, 0, 1, 0, 1, 0, 1]
    media = {"{}to{}".format(*ends): 1e8 for ends in itertools.permutations((0, 1))}

    def link(a, b):
        return FAST if island[a] == island[b] else dataclasses.replace(SLOW, shares=(f"{island[a]}to{island[b]}",))

    for count in (4, 8):
        cluster = cluster_by(link, count, media=media)
        (order,) = ring_orders(cluster, dict.fromkeys(range(count), 1), 1)
        assert sum(island[a] != island[b] for a, b in ring_hops(order)) == 2
        rounds = 2 * (count - 1)
        # One flow has each direction of the cut for itself.
        assert seconds(cluster, range(count)) == pytest.approx(rounds * (1e-5 + 1e9 / count / 1e8))


def test_all_flows_over_a_medium_divide_it():
    def switched(media):
        link = dataclasses.replace(FAST, shares=("switch",))
        return cluster_by(lambda a, b: link, 4, media=media)

    whole, rounds = seconds(cluster_by(lambda a, b: FAST, 4), range(4)), 6
    assert seconds(switched({"switch": 4e9}), range(4)) == pytest.approx(whole)
    assert seconds(switched({"switch": 1e9}), range(4)) == pytest.approx(rounds * (1e-5 + 4 * 1e9 / 4 / 1e9))
    assert seconds(switched({}), range(4)) == seconds(switched({"switch": 1e9}), range(4))
    assert seconds(switched({"switch": 4e9}), range(4), concurrent=2) == pytest.approx(
        rounds * (1e-5 + 2 * 1e9 / 4 / 1e9)
    )
    assert seconds(switched({"switch": 2e9}), (0, 1), "send", concurrent=4) == pytest.approx(1e-5 + 2.0)


def test_network_cards_divide_what_leaves_and_enters_a_host():
    link_of = lambda a, b: dataclasses.replace(FAST, shares=(f"{a} sends", f"{b} receives"))  # noqa: E731
    cluster = cluster_by(link_of, 2, devices=4)
    # In rounds 1 to 7 so many of the four devices of a host send to the other: 1 2 3 4 3 2 1.
    expected = 7 * 1e-5 + (1 + 2 + 3 + 4 + 3 + 2 + 1) * 1e9 / 8 / 1e9
    assert seconds(cluster, (0,) * 4 + (1,) * 4, "all_to_all") == pytest.approx(expected)


LINKS = st.builds(Link, st.sampled_from([1e-5, 1e-4, 1e-2]), st.sampled_from([1e7, 1e8, 1e9]))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_order_of_a_few_hosts_is_better(data):
    count = data.draw(st.integers(3, 5))
    table = data.draw(st.lists(LINKS, min_size=count**2, max_size=count**2))
    cluster = cluster_by(lambda a, b: table[a * count + b], count)
    sizes = np.array([1.0, 1e9])
    found = Links().seconds("all_gather", sizes, Group(cluster, tuple(range(count))))
    for order in itertools.permutations(range(count)):
        hops = [cluster.links[a][b] for a, b in ring_hops(order)]
        once = np.max([link.latency_s + sizes / count / link.bytes_per_s for link in hops], axis=0)
        # Of the best order for many bytes and the best for few, each is the best at its end.
        assert (found <= (count - 1) * once * (1 + 1e-9) + (count - 1) * np.array([1e-7, 1e-2])).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_slower_links_and_more_groups_take_no_less(data):
    count, per_host = data.draw(st.integers(2, 7)), data.draw(st.integers(1, 3))
    shares = st.lists(st.sampled_from("abc"), max_size=2, unique=True).map(tuple)
    table = [dataclasses.replace(data.draw(LINKS), shares=data.draw(shares)) for _ in range(count**2)]
    hosts = tuple(host for host in range(count) for _ in range(per_host))
    collective = data.draw(st.sampled_from(COLLECTIVES))

    def took(slower, concurrent=1):
        halved = [dataclasses.replace(link, bytes_per_s=link.bytes_per_s / slower) for link in table]
        cluster = cluster_by(lambda a, b: halved[a * count + b], count, per_host)
        return Links().seconds(collective, SIZES, Group(cluster, hosts, concurrent))

    known = took(1.0)
    assert np.isfinite(known).all()
    assert (np.diff(known) >= 0).all()
    assert (took(2.0) >= known * (1 - 1e-9)).all()
    assert (took(1.0, 2) >= known * (1 - 1e-9)).all()


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_two_levels_help_where_a_host_has_several_devices(collective):
    cluster, hosts = example_cluster(2, 4), (0,) * 4 + (1,) * 4
    passes = 2 if collective == "all_reduce" else 1
    two_levels = passes * (3 * (1e-5 + 1e6 / 4 / 1e10) + 1 * (1e-4 + 1e6 / 8 * 4 / 1e9))
    assert seconds(cluster, hosts, collective, 1e6) == pytest.approx(two_levels)
    assert seconds(cluster, hosts, collective, 1e6) < AlphaBeta().seconds(collective, 1e6, Group(cluster, hosts))


def test_hosts_with_unlike_numbers_of_devices_have_one_ring():
    cluster = example_cluster(2, 4)
    assert seconds(cluster, (0, 0, 0, 1)) == pytest.approx(6 * (1e-4 + 1e9 / 4 / 1e9))


def test_a_slow_pair_is_left_out_of_the_ring():
    for count in (4, 9):
        cluster = cluster_by(lambda a, b, last=count - 1: SLOW if {a, b} == {0, last} else FAST, count)
        assert seconds(cluster, range(count)) == pytest.approx(2 * (count - 1) * (1e-5 + 1e9 / count / 1e9))


def test_a_ring_goes_in_the_better_direction():
    for count in (3, 8):
        upwards = cluster_by(lambda a, b, n=count: FAST if (b - a) % n == 1 else SLOW, count)
        downwards = cluster_by(lambda a, b, n=count: FAST if (a - b) % n == 1 else SLOW, count)
        expected = 2 * (count - 1) * (1e-5 + 1e9 / count / 1e9)
        assert seconds(upwards, range(count)) == seconds(downwards, range(count)) == pytest.approx(expected)
    assert seconds(upwards, (0, 1), "send") == pytest.approx(1e-5 + 1.0)
    assert seconds(upwards, (1, 0), "send") == pytest.approx(1e-5 + 10.0)


def test_a_cluster_that_took_anothers_place_in_memory_is_not_mistaken_for_it():
    model, found = Links(), set()
    for rate in (1e7, 1e8, 1e9):
        cluster = cluster_by(lambda a, b, rate=rate: Link(1e-5, rate), 2)
        found.add(float(model.seconds("all_reduce", 1e9, Group(cluster, (0, 1)))))
        del cluster
    assert len(found) == 3


def test_many_hosts_are_quick_to_ask():
    cluster = cluster_by(lambda a, b: FAST if a % 4 == b % 4 else SLOW, 32)
    (order, *_) = ring_orders(cluster, dict.fromkeys(range(32), 1), 1)
    assert sum(a % 4 != b % 4 for a, b in ring_hops(order)) == 4
