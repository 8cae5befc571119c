"""Communication models: the conformance suite, and the ring formulas by hand."""

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.communication import AlphaBeta, Group, communication_model
from alpa_dejavu.problem import Cluster, Link
from alpa_dejavu.testing import check_communication_model, example_cluster


@pytest.mark.parametrize("name", ["alpha-beta", "free"])
def test_conforms(name):
    check_communication_model(communication_model(name))


@pytest.mark.parametrize(
    ("collective", "hosts", "concurrent", "seconds"),
    [
        ("all_reduce", (0, 0, 0, 0), 1, 6 * (1e-5 + 1e6 / 4 / 1e10)),
        ("all_gather", (0, 0, 0, 0), 1, 3 * (1e-5 + 1e6 / 4 / 1e10)),
        ("reduce_scatter", (0, 1), 1, 1 * (1e-4 + 1e6 / 2 / 1e9)),
        ("all_to_all", (0, 1), 3, 1 * (1e-4 + 3 * 1e6 / 2 / 1e9)),
        ("send", (0, 1), 1, 1e-4 + 1e6 / 1e9),
        ("send", (0, 0), 1, 1e-5 + 1e6 / 1e10),
        ("all_reduce", (0,), 1, 0.0),
    ],
)
def test_rings_by_hand(collective, hosts, concurrent, seconds):
    group = Group(example_cluster(), hosts, concurrent)
    assert float(AlphaBeta().seconds(collective, 1e6, group)) == pytest.approx(seconds)


def test_nonsense_is_refused():
    cluster = example_cluster()
    with pytest.raises(ValueError, match="no collective 'gossip'"):
        AlphaBeta().seconds("gossip", np.ones(2), Group(cluster, (0,)))
    with pytest.raises(ValueError, match=r"hosts is \(5,\)"):
        Group(cluster, (5,))
    with pytest.raises(ValueError, match="concurrent is 0"):
        Group(cluster, (0,), 0)
    with pytest.raises(ValueError, match="'alpha-beta', 'auto', 'free'"):
        communication_model("telepathy")


def cards(per_host, rate=25e9 / 8):
    """Hosts whose links take no time but for the bytes, next to nothing of it within hosts."""
    base = example_cluster(len(per_host))
    hosts = tuple(dataclasses.replace(h, num_devices=n) for h, n in zip(base.hosts, per_host, strict=True))
    count = range(len(per_host))
    links = tuple(tuple(Link(0.0, 1e18 if a == b else rate) for b in count) for a in count)
    return Cluster("cards", hosts, links)


def in_order(per_host):
    return tuple(host for host, n in enumerate(per_host) for _ in range(n))


@pytest.mark.parametrize("name", ["alpha-beta", "links"])
@pytest.mark.parametrize("concurrent", [1, 3])
@pytest.mark.parametrize(
    ("per_host", "leaving"),
    [
        ((8, 8), 8 * 8 / 16),  # eight devices send half of their gigabyte to the other host: 4 GB, 1280 ms
        ((8, 8, 8, 8), 8 * 24 / 32),
        ((1, 1, 1, 1), 3 / 4),
        ((3, 1), 3 * 1 / 4),
        ((4, 2), 4 * 2 / 6),
    ],
)
def test_a_hosts_card_carries_all_that_its_devices_send_out_in_an_all_to_all(name, concurrent, per_host, leaving):
    cluster, model = cards(per_host), communication_model(name)
    took = float(model.seconds("all_to_all", 1e9, Group(cluster, in_order(per_host), concurrent)))
    assert took == pytest.approx(concurrent * leaving * 1e9 / (25e9 / 8), rel=1e-6)


@pytest.mark.parametrize("per_host", [(8, 8), (8, 8, 8, 8), (1, 1, 1, 1)])
@pytest.mark.parametrize(("collective", "passes"), [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)])
@pytest.mark.parametrize("concurrent", [1, 3])
def test_rings_send_each_share_out_of_a_host_once(per_host, collective, passes, concurrent):
    """A flat ring sends all but one of the devices' shares out of each host, one in two levels all but the host's."""
    cluster, size, num_hosts = cards(per_host), sum(per_host), len(per_host)
    group = Group(cluster, in_order(per_host), concurrent)
    once = passes * concurrent * 1e9 / (25e9 / 8)
    models = communication_model("alpha-beta"), communication_model("links")
    flat, levels = (float(model.seconds(collective, 1e9, group)) for model in models)
    assert flat == pytest.approx(once * (size - 1) / size, rel=1e-6)
    assert levels == pytest.approx(once * (num_hosts - 1) / num_hosts, rel=1e-6)


def test_stages_may_send_by_another_way():
    base = example_cluster(1)
    link = Link(1e-5, 1e10, send_latency_s=1.0, send_bytes_per_s=1e6)
    cluster = Cluster("c", base.hosts, ((link,),))
    assert float(AlphaBeta().seconds("send", 1e6, Group(cluster, (0, 0)))) == pytest.approx(2.0)


def test_messages_that_a_cache_holds_have_their_own_rate():
    link = Link(1e-5, 1e9, cached_bytes_per_s=1e10, cached_bytes=4e6)
    cluster = Cluster("c", example_cluster(1).hosts, ((link,),))
    few, many = AlphaBeta().seconds("all_reduce", [2e6, 4e6], Group(cluster, (0, 0)))
    assert few == pytest.approx(2 * (1e-5 + 1e6 / 1e10))
    assert many == pytest.approx(2 * (1e-5 + 2e6 / 1e9))


def test_a_pair_has_fewer_links_between_it_than_a_group():
    cluster = named_cluster("p3.16xlarge")
    pair, whole = (AlphaBeta().seconds("all_reduce", 1e9, Group(cluster, (0,) * size)) for size in (2, 8))
    assert pair == pytest.approx(1e9 / 25e9, rel=0.01)
    assert whole == pytest.approx(2 * 7 / 8 * 1e9 / 150e9, rel=0.02)


def test_an_all_to_all_of_16_devices_on_two_hosts_by_hand():
    for name in ("alpha-beta", "links"):
        group = Group(cards((8, 8)), in_order((8, 8)))
        assert float(communication_model(name).seconds("all_to_all", 1e9, group)) == pytest.approx(1.28, rel=1e-6)


@pytest.mark.parametrize("per_host", [(5, 2, 1), (2, 3, 4), (1, 6)])
@pytest.mark.parametrize("name", ["alpha-beta", "links"])
def test_an_all_to_all_never_takes_less_than_the_fullest_card(name, per_host):
    cluster, size = cards(per_host), sum(per_host)
    fullest = max(here * (size - here) for here in per_host) / size * 1e9 / (25e9 / 8)
    mixed = tuple(np.random.default_rng(0).permutation(in_order(per_host)).tolist())
    for hosts in (in_order(per_host), in_order(per_host)[::-1], mixed):
        took = float(communication_model(name).seconds("all_to_all", 1e9, Group(cluster, hosts)))
        assert took >= fullest * (1 - 1e-9)
