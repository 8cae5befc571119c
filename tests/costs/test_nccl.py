"""NCCL's collectives: by the generation of the GPUs inside a host, and by the network across hosts."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.clusters.gpus import gpu_of, known_gpus
from alpa_dejavu.costs.communication import COLLECTIVES, Group, Nccl, communication_model, communication_name
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
