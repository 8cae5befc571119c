"""NCCL's collectives: by the generation of the GPUs inside a host, and by the network across hosts."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.gpus import gpu_of, known_gpus
from alpa_dejavu.costs.communication import (
    COLLECTIVES,
    MEASURED,
    AlphaBeta,
    Group,
    Nccl,
    communication_model,
    communication_name,
)
from alpa_dejavu.costs.communication._nccl import FILE, NcclFigures, NetworkFigures, kind_of
from alpa_dejavu.problem import Cluster, Device, Link
from alpa_dejavu.testing import check_communication_model, example_cluster

SIZES = np.array([0.0, 1.0, 1e4, 1e6, 1e9])


def cluster_of(gpu, num_hosts=1, devices=8, network=400e9, link=None):
    sheet = gpu_of(gpu)
    within = Link(1e-5, sheet.link_bytes_per_s) if link is None else link
    hosts = [f"host-{n}" for n in range(num_hosts)]
    return Cluster.uniform(gpu, hosts, sheet.device(), devices, within, Link(3e-5, network))


def seconds(group, collective="all_reduce", num_bytes=1e9, **settings):
    return float(Nccl(**settings).seconds(collective, num_bytes, group))


def factor(group, collective="all_reduce", num_bytes=1e9):
    lower, upper, measured = Nccl().interval(collective, num_bytes, group)
    assert lower <= seconds(group, collective, num_bytes) <= upper
    return float(upper / lower), bool(measured)


def test_conforms_and_is_chosen_by_name():
    check_communication_model(Nccl())
    check_communication_model(Nccl(launch_s=1e-5))
    assert communication_model("nccl") == Nccl()
    assert communication_name(Nccl()) == "nccl"
    assert communication_name(Nccl(launch_s=1e-5)) == "Nccl"
    with pytest.raises(ValueError, match="collective is 'gossip', but must be one of all_reduce"):
        Nccl().seconds("gossip", SIZES, Group(example_cluster(), (0, 0)))


def test_file_has_figures_for_each_kind_with_their_origin_and_errors():
    content = json.loads(FILE.read_text())
    assert {"date", "origin", "units", "held_out"} < set(content)
    for figures in content["figures"].values():
        assert all(value > 0 for value in vars(NcclFigures(**figures)).values())
    for network in content["network"].values():
        assert all(value > 0 for value in vars(NetworkFigures(**network)).values())
    for ends in content["ends"].values():
        assert all(lower < 0 < upper for lower, upper in ends)
    assert set(content["ends"]) == {*content["figures"], "across", "nothing"}


@pytest.mark.parametrize("gpu", known_gpus())
@pytest.mark.parametrize("hosts", [(0,) * 2, (0,) * 8, (0, 1), (0,) * 8 + (1,) * 8])
def test_more_bytes_take_no_less_time_on_any_gpu(gpu, hosts):
    group, sizes = Group(cluster_of(gpu, 2), hosts), np.geomspace(1, 1e11, 200)
    for collective in COLLECTIVES:
        predicted = Nccl().seconds(collective, sizes, group)
        assert (np.diff(predicted) >= 0).all()
        assert np.isfinite(predicted).all()
        lower, upper, _ = Nccl().interval(collective, sizes, group)
        assert (lower < predicted).all()
        assert (predicted < upper).all()


def test_gpus_that_nobody_measured_go_by_their_generation_or_by_the_common_figures():
    for gpu, like in (("H200-SXM-141GB", "H100-SXM-80GB"), ("B300-SXM-288GB", "B200-SXM-180GB")):
        groups = [Group(cluster_of(name), (0,) * 4) for name in (gpu, like)]
        assert seconds(groups[0]) == seconds(groups[1])
        assert factor(groups[0])[0] > factor(groups[1])[0]
        assert [factor(group)[1] for group in groups] == [False, True]
    named = Device("Rubin", 1e9, {"float32": 1e12}, 1e12, 1e13)
    unknown = Group(Cluster.uniform("new", ["host"], named, 4, Link(0.0, 1.8e12), Link(0.0, 1e11)), (0,) * 4)
    assert kind_of(unknown) == "common"
    assert not factor(unknown)[1]
    assert factor(Group(cluster_of("T4"), (0, 0))) == (pytest.approx(4, rel=0.01), False)
    assert factor(Group(cluster_of("L40S"), (0, 0)))[1]


def test_an_all_reduce_across_two_hosts_goes_by_trees_and_across_many_by_rings():
    def leaving(num_hosts):
        group = Group(cluster_of("H100-SXM-80GB", num_hosts), tuple(np.repeat(range(num_hosts), 8).tolist()))
        return seconds(group, "all_reduce", 1e12) * 400e9 * 0.85 / 1e12

    assert leaving(2) == pytest.approx(1 / 0.75, rel=0.02)
    assert leaving(8) == pytest.approx(2 * 63 / 64, rel=0.02)


@given(
    size=st.sampled_from((1, 2, 4, 8)), num_hosts=st.integers(1, 4), num_bytes=st.floats(1e8, 1e12),
    gpu=st.sampled_from(known_gpus()),
)  # fmt: skip
def test_an_all_reduce_of_a_long_tensor_takes_no_less_than_its_reduce_scatter(size, num_hosts, num_bytes, gpu):
    hosts = tuple(np.repeat(range(num_hosts), size).tolist())
    group = Group(cluster_of(gpu, num_hosts), hosts)
    assert seconds(group, "all_reduce", num_bytes) >= seconds(group, "reduce_scatter", num_bytes)


@pytest.mark.parametrize(
    ("gpu", "size", "collective", "bus"),
    [
        ("H100-SXM-80GB", 8, "all_gather", (0.70, 0.80)),
        ("A100-SXM-80GB", 8, "all_reduce", (0.70, 0.80)),
        ("B200-SXM-180GB", 2, "reduce_scatter", (0.45, 0.60)),
    ],
)
def test_long_tensors_reach_most_of_the_link(gpu, size, collective, bus):
    group = Group(cluster_of(gpu), (0,) * size)
    sent = (2 if collective == "all_reduce" else 1) * (size - 1) / size * 1e10
    share = sent / seconds(group, collective, 1e10) / gpu_of(gpu).link_bytes_per_s
    assert bus[0] < share < bus[1]


def test_the_clusters_own_links_count():
    fast, slow = (Group(cluster_of("H100-SXM-80GB", link=Link(1e-5, rate)), (0,) * 4) for rate in (450e9, 225e9))
    for collective in MEASURED:
        assert seconds(slow, collective, 1e11) == pytest.approx(2 * seconds(fast, collective, 1e11), rel=0.01)


def test_switches_add_up_all_reduces_of_more_than_four_from_hopper_on():
    def ratio(gpu, size):
        group = Group(cluster_of(gpu), (0,) * size)
        return seconds(group, "all_reduce", 1e11) / seconds(group, "all_gather", 1e11)

    assert ratio("H100-SXM-80GB", 8) < ratio("A100-SXM-80GB", 8) - 0.3
    assert ratio("H100-SXM-80GB", 4) == pytest.approx(ratio("A100-SXM-80GB", 4), rel=0.05)


def test_hosts_with_pcie_alone_slow_down_beyond_two():
    two, eight = (Group(cluster_of("L40S"), (0,) * size) for size in (2, 8))
    assert seconds(eight, "all_gather") > 10 * seconds(two, "all_gather")
    assert kind_of(eight) == kind_of(Group(cluster_of("A100-PCIE-80GB"), (0, 0))) == "pcie"


@pytest.mark.parametrize("collective", MEASURED)
def test_a_runtime_that_has_all_devices_in_one_process_starts_them_one_by_one(collective):
    group = Group(cluster_of("V100-SXM2-16GB"), (0,) * 8)
    assert seconds(group, collective, 1.0, launch_s=1e-4) == pytest.approx(seconds(group, collective, 1.0) + 8e-4)


def test_across_hosts_the_network_is_the_limit_or_the_inside_of_a_host():
    slow, fast = (Group(cluster_of("H100-SXM-80GB", 2, network=rate), (0,) * 8 + (1,) * 8) for rate in (50e9, 1e13))
    inside = Group(cluster_of("H100-SXM-80GB"), (0,) * 8)
    for collective in ("all_gather", "reduce_scatter"):
        assert seconds(slow, collective, 1e11) == pytest.approx(15 / 16 * 1e11 / (0.85 * 50e9), rel=0.02)
        ring = seconds(inside, collective, 1e11) * (15 / 16) / (7 / 8)
        assert seconds(fast, collective, 1e11) == pytest.approx(ring, rel=0.02)
    assert seconds(fast, "all_to_all", 1e11) == pytest.approx(seconds(inside, "all_to_all", 1e11) / 2, rel=0.02)
    assert factor(slow)[1] is False
    assert factor(Group(named_cluster("p3.16xlarge", 2), (0, 1)))[1] is True


def test_devices_have_a_card_each_where_the_host_has_several_and_groups_share_them():
    whole, cluster = (0,) * 8 + (1,) * 8, cluster_of("H100-SXM-80GB", 2)
    alone, shared = (seconds(Group(cluster, (0, 1), concurrent), "all_gather") for concurrent in (1, 8))
    assert alone == pytest.approx(0.5 / (0.85 * 50e9) * 1e9, rel=0.02)
    assert alone == shared
    both = [seconds(Group(cluster, whole, concurrent), "all_gather", 1e11) for concurrent in (1, 2)]
    assert both[1] == pytest.approx(2 * both[0], rel=0.02)
    # A host with one slow card lets any device use all of it.
    one = Group(named_cluster("p3.16xlarge", 2), (0, 1))
    link = one.cluster.slowest_link((0, 1))
    assert seconds(one, "all_gather", 1e11) < 1.3 * 0.5e11 / link.bytes_per_s


def test_an_all_to_all_across_hosts_takes_what_each_host_sends_out():
    group = Group(cluster_of("H100-SXM-80GB", 4), tuple(np.repeat(range(4), 8).tolist()))
    assert seconds(group, "all_to_all", 1e10) == pytest.approx(8 * 24 / 32 * 1e10 / (0.85 * 400e9), rel=0.02)


@pytest.mark.parametrize("hosts", [(0, 0), (0, 1), (0,)])
def test_sends_go_by_the_alpha_beta_model(hosts):
    group = Group(named_cluster("dgx-h100", 2), hosts)
    assert Nccl().seconds("send", SIZES, group).tolist() == AlphaBeta().seconds("send", SIZES, group).tolist()
    assert factor(group, "send") == (pytest.approx(4, rel=0.01), False)


def test_given_figures_take_the_place_of_the_generations():
    group = Group(cluster_of("H100-SXM-80GB"), (0,) * 4)
    content = json.loads(FILE.read_text())["figures"]["hopper"]
    slow = dataclasses.replace(NcclFigures(**content), share=content["share"] / 2)
    assert seconds(group, num_bytes=1e11, figures=slow) == pytest.approx(2 * seconds(group, num_bytes=1e11), rel=0.01)
