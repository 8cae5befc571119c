"""The search space: which submeshes and configs a stage may take."""

import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.changed_cluster import without
from alpa_dejavu.clusters.space import search_space, submeshes
from alpa_dejavu.problem import NoPlanError


@pytest.mark.parametrize(
    ("kind", "hosts", "expected"),
    [
        ("power_of_two", 6, [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (6, 8)]),
        ("small_power_of_two", 8, [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8)]),
        ("all", 3, [(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (3, 8)]),
        ("power_of_two", 1, [(1, 1), (1, 2), (1, 4), (1, 8)]),
    ],
)
def test_submeshes(kind, hosts, expected):
    found = submeshes(named_cluster("p3.16xlarge", hosts), kind)
    assert [(s.num_hosts, s.devices_per_host) for s in found] == expected


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="choose one of"):
        submeshes(named_cluster("p3.16xlarge"), "some")


def test_data_parallel_devices_divide_the_micro_batch():
    space = search_space(named_cluster("p3.16xlarge", 2), micro_batch=4)
    for submesh, row in zip(space.submeshes, space.configs, strict=True):
        for config in filter(None, row):
            assert 4 % config.data_parallel == 0
            assert config.tensor_parallel <= submesh.devices_per_host
            assert config.data_parallel * config.tensor_parallel == submesh.num_devices


def test_each_remat_and_zero_level_is_a_config_and_alpa_is_told():
    space = search_space(named_cluster("p3.16xlarge"), 8, remat=("none", "layer"), zero=(0, 2, 3))
    row = [config for config in space.configs[1] if config is not None]
    alone = [config for config in space.configs[0] if config is not None]
    assert {(c.remat, c.zero) for c in row if c.data_parallel == 2} == {
        (remat, zero) for remat in ("none", "layer") for zero in (0, 2, 3)
    }
    assert {c.zero for c in alone} == {0}, "one device has nobody to share with"
    told = {c.zero: set(c.options) - {"force_batch_dim_to_mesh_dim"} for c in row}
    assert told == {0: set(), 2: {"prefer_reduce_scatter"}, 3: {"force_zero_stage_3"}}


@pytest.mark.parametrize("unlike", [False, True])
def test_replicas_leave_configs_that_have_as_many(unlike):
    cluster = named_cluster("p3.16xlarge", 2)
    if unlike:
        cluster = without(cluster, [f"{cluster.hosts[1].name}/{n}" for n in range(4)])
    every, some = search_space(cluster, 16), search_space(cluster, 16, replicas=4)
    whole = {(s, c) for s, row in zip(every.submeshes, every.configs, strict=True) for c in row if c is not None}
    left = {(s, c) for s, row in zip(some.submeshes, some.configs, strict=True) for c in row if c is not None}
    assert left == {(s, c) for s, c in whole if c.batch_forced and c.data_parallel >= 4}
    assert left
    assert min(submesh.num_devices for submesh in some.submeshes) == 4


def test_more_replicas_than_samples_of_a_micro_batch_are_refused():
    with pytest.raises(NoPlanError, match=r"replicas is 4, but no stage on .* a micro-batch of 2 samples; give fewer"):
        search_space(named_cluster("p3.16xlarge", 2), 2, replicas=4)
