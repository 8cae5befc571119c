"""Communication models: the conformance suite, and the ring formulas by hand."""

import numpy as np
import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.communication import AlphaBeta, Group, communication_model
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


def test_stages_may_send_by_another_way():
    base = example_cluster(1)
    link = Link(1e-5, 1e10, send_latency_s=1.0, send_bytes_per_s=1e6)
    cluster = Cluster("c", base.hosts, ((link,),))
    assert float(AlphaBeta().seconds("send", 1e6, Group(cluster, (0, 0)))) == pytest.approx(2.0)


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


def test_a_pair_has_fewer_links_between_it_than_a_group():
    cluster = named_cluster("p3.16xlarge")
    pair, whole = (AlphaBeta().seconds("all_reduce", 1e9, Group(cluster, (0,) * size)) for size in (2, 8))
    assert pair == pytest.approx(1e9 / 25e9, rel=0.01)
    assert whole == pytest.approx(2 * 7 / 8 * 1e9 / 150e9, rel=0.02)
