"""Communication models: the conformance suite, and the ring formulas by hand."""

import dataclasses

import numpy as np
import pytest

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
