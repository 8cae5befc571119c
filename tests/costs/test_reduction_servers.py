"""Splits of gradients among workers and reduction servers: by a linear program, and by published formulas."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import unlike
from alpa_dejavu.costs.communication import AlphaBeta, CommunicationModel, Group, Links
from alpa_dejavu.costs.communication.reduction_servers import group_split, reduction_split, served_s
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.problem import Cluster, Link, MeshConfig, ReductionServer, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain

RATES = st.floats(0.01, 100.0)
WORKERS = st.lists(RATES, min_size=1, max_size=8)
SERVERS = st.lists(RATES, max_size=8)


def traffic(num_workers, num_servers):
    """Bytes that each machine sends, and that it receives, for each byte that each machine adds up: shape (2, m, m)."""
    count = num_workers + num_servers
    moved = np.zeros((2, count, count))
    for adder in range(count):
        for worker in set(range(num_workers)) - {adder}:
            for sender, receiver in ((worker, adder), (adder, worker)):
                moved[0, sender, adder] += 1
                moved[1, receiver, adder] += 1
    return moved


def optimum(workers, servers):
    """The least seconds for one byte, by a linear program over what each machine adds up, and the seconds."""
    rates = np.array([*workers, *servers])
    moved = traffic(len(workers), len(servers))
    rows = np.concatenate([np.hstack([one, -rates[:, None]]) for one in moved])
    found = linprog(
        c=[0.0] * len(rates) + [1.0],
        A_ub=rows,
        b_ub=np.zeros(len(rows)),
        A_eq=[[1.0] * len(rates) + [0.0]],
        b_eq=[1.0],
        method="highs",
    )
    assert found.success
    return found.fun


@given(WORKERS, SERVERS)
@settings(max_examples=150, deadline=None)
def test_the_closed_form_is_the_optimum_of_the_linear_program(workers, servers):
    split = reduction_split(1.0, workers, servers, within=0.0)
    assert split.seconds == pytest.approx(optimum(workers, servers), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16])
def test_alike_machines_take_what_the_formula_of_byteps_says(workers):
    n, rate = workers, 2.0
    for k in range(n + 1):
        split = reduction_split(8.0, [rate] * n, [rate] * k, within=0.0)
        assert split.seconds == pytest.approx(2 * n * (n - 1) * 8.0 / ((n**2 + k * n - 2 * k) * rate))
        assert split.paying == (k if n > 2 else 0)
    assert reduction_split(8.0, [rate] * n, []).seconds == pytest.approx(2 * (n - 1) / n * 8.0 / rate)
    more = reduction_split(8.0, [rate] * n, [rate] * (n + 3), within=0.0)
    assert more.seconds == pytest.approx(8.0 / rate)
    assert more.paying == (n if n > 2 else 0)


def test_what_is_no_rate_is_refused():
    for given_rates, said in [
        (([], [1.0]), "workers_bytes_per_s is empty, but must have"),
        (([1.0, 0.0], []), r"workers_bytes_per_s\[1\] is 0.0, but must be a finite number above 0"),
        (([1.0], [float("nan")]), r"servers_bytes_per_s\[0\] is nan, but must be"),
    ]:
        with pytest.raises(ValueError, match=said):
            reduction_split(1.0, *given_rates)
    with pytest.raises(ValueError, match=r"num_bytes is -1\.0, but must be"):
        reduction_split(-1.0, [1.0], [])
    with pytest.raises(ValueError, match=r"within is -1\.0, but must be"):
        reduction_split(1.0, [1.0], [], within=-1.0)
    with pytest.raises(ValueError, match="reduction server s: bytes_per_s is 0, but must be"):
        ReductionServer("s", 0)


def served(cluster, *rates):
    return dataclasses.replace(
        cluster, reduction_servers=tuple(ReductionServer(f"s{n}", rate) for n, rate in enumerate(rates))
    )


def test_no_server_pays_on_one_host_on_two_or_where_there_is_none():
    cluster = served(example_cluster(4, 2), 1e9)
    assert group_split(Group(cluster, (0, 0)), 1e9) is None
    assert group_split(Group(cluster, (0, 1)), 1e9) is None
    assert group_split(Group(example_cluster(4, 2), (0, 1, 2)), 1e9) is None
    assert served_s(AlphaBeta(), np.array([1e9]), Group(cluster, (0, 1))) is None


def test_a_host_is_as_fast_as_its_slowest_link_and_what_links_share():
    fast, slow, card = Link(1e-4, 1.5e9), Link(1e-4, 1e9), Link(1e-4, 4e9, shares=("switch",))
    hosts = [unlike.host(name, devices=1) for name in "abc"]

    def split(link, **fields):
        made = dataclasses.replace(unlike.cluster(hosts, link), **fields)
        return group_split(Group(served(made, 1e9, 1e9, 1e9), (0, 1, 2)), 1e9)

    assert split(lambda a, b: slow if a.name == "c" else fast) == reduction_split(1e9, [1e9] * 3, [1e9] * 3)
    assert split(lambda a, b: slow if {a.name, b.name} == {"b", "c"} else fast) == reduction_split(
        1e9, [1.5e9, 1e9, 1e9], [1e9] * 3
    )
    # All three hosts send over the switch, and each has a third of it.
    assert split(lambda a, b: card, media={"switch": 6e9}) == reduction_split(1e9, [2e9] * 3, [1e9] * 3)


def test_only_gradients_of_stages_on_several_hosts_are_split():
    cluster, model = example_cluster(4, 2), chain(2, parameter_bytes=1e9)
    config = MeshConfig((8, 1), 8, 1)

    def priced(of, submesh, config):
        costs = StageCostModel(model, of, CostModels.named())
        found = costs.seconds(costs.places.on_submesh(submesh), config)
        return dict(zip(COST_KINDS, found[:, 0, 1], strict=True))

    plain, beside = (priced(of, Submesh(4, 2), config) for of in (cluster, served(cluster, *[1e9] * 4)))
    inside = 2 * (1e-5 + 2e9 / 2 / 1e10)
    assert beside.pop("synchronisation_s") == pytest.approx(inside + 2 * 1e-4 + 2e9 / 1e9)
    assert plain.pop("synchronisation_s") == pytest.approx(14 * (1e-4 + 2e9 / 8 / 1e9))
    assert beside == plain
    within = MeshConfig((2, 1), 2, 1)
    assert priced(served(cluster, *[1e9] * 4), Submesh(1, 2), within) == priced(cluster, Submesh(1, 2), within)
    sharded = MeshConfig((8, 1), 8, 1, zero=2)
    assert priced(served(cluster, *[1e9] * 4), Submesh(4, 2), sharded) == priced(cluster, Submesh(4, 2), sharded)


def test_names_are_those_of_no_other_host():
    cluster = example_cluster(2)
    with pytest.raises(ValueError, match="the host 'host-1' is there twice"):
        dataclasses.replace(cluster, reduction_servers=(ReductionServer("host-1", 1e9),))
    assert isinstance(served(cluster, 1e9).part([1]), Cluster)
    assert served(cluster, 1e9).part([1]).reduction_servers == served(cluster, 1e9).reduction_servers


@given(WORKERS, SERVERS, st.floats(0.0, 0.5), st.floats(1.0, 1e12))
@settings(max_examples=150, deadline=None)
def test_the_shares_take_no_machine_longer_than_it_says(workers, servers, within, num_bytes):
    split = reduction_split(num_bytes, workers, servers, within)
    shares = np.array([*split.of_workers, *split.of_servers])
    assert shares.sum() == pytest.approx(1.0)
    assert (shares >= 0).all()
    taken = traffic(len(workers), len(servers)) @ shares * num_bytes / np.array([*workers, *servers])
    assert taken.max() <= split.seconds * (1 + 1e-9)


@given(WORKERS, SERVERS, st.floats(0.0, 0.5))
@settings(max_examples=60, deadline=None)
def test_one_server_less_takes_longer_than_what_is_allowed(workers, servers, within):
    split = reduction_split(1.0, workers, servers, within)
    fastest = sorted(servers, reverse=True)
    best = optimum(workers, servers)
    assert split.seconds <= best * (1 + within) * (1 + 1e-6)
    if split.paying:
        assert optimum(workers, fastest[: split.paying - 1]) >= best * (1 + within) * (1 - 1e-6)
        paying = [rate for rate, share in zip(servers, split.of_servers, strict=True) if share > 0]
        assert sorted(paying, reverse=True) == fastest[: split.paying]


def test_slow_servers_are_left_out_and_one_worker_needs_none():
    split = reduction_split(1.0, [1.0] * 4, [1e-4, 2.0, 1.0, 1e-4])
    assert [share > 0 for share in split.of_servers] == [False, True, True, False]
    assert reduction_split(5.0, [1.0], [1.0]).seconds == 0.0


@pytest.mark.parametrize("model", [AlphaBeta(), Links()])
def test_a_group_on_four_hosts_takes_half_of_a_parameter_server(model):
    """Four hosts of two devices, four servers as fast as a host: all bytes go out of each host once."""
    cluster, hosts = served(example_cluster(4, 2), *[1e9] * 4), (0, 0, 1, 1, 2, 2, 3, 3)
    inside = 2 * (1e-5 + 1e8 / 2 / 1e10)
    found = served_s(model, np.array([0.0, 1e8]), Group(cluster, hosts))
    assert found == pytest.approx([0.0, inside + 2 * 1e-4 + 1e8 / 1e9])
    both = served_s(model, np.array([1e8]), Group(cluster, hosts, 2))
    assert both == pytest.approx([inside + 2 * 1e-4 + 2 * 1e8 / 1e9])


class Measured(CommunicationModel):
    """All-reduces take three times as long as links say, all else half as long again."""

    def seconds(self, collective, num_bytes, group):
        return AlphaBeta().seconds(collective, num_bytes, group) * (3.0 if collective == "all_reduce" else 1.5)


def test_servers_reach_no_more_of_the_links_than_a_ring_does():
    cluster, hosts = served(example_cluster(4, 2), *[1e9] * 4), (0, 0, 1, 1, 2, 2, 3, 3)
    found = served_s(Measured(), np.array([0.0, 1e8]), Group(cluster, hosts))
    assert found == pytest.approx([0.0, 1.5 * 2 * (1e-5 + 1e8 / 2 / 1e10) + 3 * (2 * 1e-4 + 1e8 / 1e9)])


def test_a_group_on_half_of_the_hosts_has_half_of_each_server():
    cluster = served(example_cluster(8, 1), *[2e9] * 4)
    half, whole = (group_split(Group(cluster, tuple(range(count))), 1e9) for count in (4, 8))
    assert half == reduction_split(1e9, [1e9] * 4, [1e9] * 4)
    assert whole == reduction_split(1e9, [1e9] * 8, [2e9] * 4)
