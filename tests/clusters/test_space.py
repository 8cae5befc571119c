"""The search space, where its submeshes are placed, and in which order a stage's mesh has its hosts."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.changed_cluster import without
from alpa_dejavu.clusters.device_order import device_order
from alpa_dejavu.clusters.placement import alpas_hosts, place
from alpa_dejavu.clusters.space import search_space, submeshes
from alpa_dejavu.problem import Cluster, Host, Link, NoPlanError, Run, SearchSpace, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain, planned


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


def by_alpa(shapes, hosts, devices):
    """The submeshes that Alpa makes; None where it refuses."""
    from alpa.device_mesh import VirtualPhysicalMesh
    from alpa.pipeline_parallel import stage_construction

    infos = [{"NodeManagerAddress": f"10.0.0.{n}"} for n in range(hosts)]
    mesh = VirtualPhysicalMesh(list(range(hosts)), infos, devices)
    try:
        return stage_construction.get_sliced_virtual_submeshes(mesh, shapes)
    except AssertionError:
        return None


def where_alpa_puts(shapes, hosts, devices):
    """The hosts of each stage; None where Alpa refuses."""
    sliced = by_alpa(shapes, hosts, devices)
    return None if sliced is None else [tuple(own.host_ids) for own in sliced]


@st.composite
def filled(draw):
    """Submeshes, as many as fill equal hosts: whole hosts, and parts of one, in any order."""
    devices, left, shapes = draw(st.sampled_from([1, 2, 4, 6, 8])), draw(st.integers(1, 6)), []
    hosts = left
    while left:
        whole = draw(st.integers(0, left))
        shapes += [(whole, devices)] if whole else []
        left -= whole
        rest = devices if left and not whole else 0
        left -= 1 if rest else 0
        while rest:
            part = draw(st.integers(1, rest))
            shapes.append((1, part))
            rest -= part
    return draw(st.permutations(shapes)), hosts, devices


@pytest.mark.alpa
@given(filled())
@example(([(1, 4)] * 3, 3, 4))
@example(([(1, 2)] * 4, 2, 4))
@example(([(1, 4), (1, 2), (1, 4), (1, 2)], 2, 6))
def test_equal_hosts_are_taken_as_alpa_takes_them(drawn):
    shapes, hosts, devices = drawn
    expected = where_alpa_puts(shapes, hosts, devices)
    submeshes = [Submesh(*shape) for shape in shapes]
    assert alpas_hosts(submeshes, hosts, devices) == expected
    if expected is not None:
        assert place(submeshes, example_cluster(hosts, devices)) == expected


@pytest.mark.alpa
@pytest.mark.parametrize("shapes", [[(1, 4)], [(1, 4)] * 3, [(2, 2), (2, 2)], [(2, 2), (1, 2), (1, 2)], [(1, 3)] * 3])
def test_what_alpa_refuses_is_known(shapes):
    assert where_alpa_puts(shapes, 2, 4) is None
    assert alpas_hosts([Submesh(*shape) for shape in shapes], 2, 4) is None


FAST, SLOW = 10.0, 1.0


def cluster_of(rates):
    device = example_cluster(1).hosts[0].device
    hosts = tuple(Host(f"h{n}", device, 2) for n in range(len(rates)))
    return Cluster("made up", hosts, tuple(tuple(Link(0.0, rate) for rate in row) for row in rates))


def islands(*sizes):
    """Hosts that take turns in their islands."""
    number = [n % len(sizes) for n in range(sum(sizes))]
    return cluster_of([[FAST if a == b else SLOW for b in number] for a in number])


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


def test_more_replicas_than_samples_of_a_micro_batch_are_refused():
    with pytest.raises(NoPlanError, match=r"replicas is 4, but no stage on .* a micro-batch of 2 samples; give fewer"):
        search_space(named_cluster("p3.16xlarge", 2), 2, replicas=4)


@pytest.mark.alpa
@given(filled())
def test_on_the_hosts_of_a_plan_stages_have_the_devices_that_alpa_gives_them(drawn):
    """A plan that Alpa would place alike runs on the same devices, whether we place it or Alpa does."""
    from alpa.pipeline_parallel import stage_construction

    from alpa_dejavu.alpa._places import on_hosts, slicing

    shapes, hosts, devices = drawn
    expected = by_alpa(shapes, hosts, devices)
    if expected is None:
        return
    with on_hosts([own.host_ids for own in expected]):
        ours = slicing(stage_construction.get_sliced_virtual_submeshes)(expected[0].parent, shapes)
    for own, theirs in zip(ours, expected, strict=True):
        assert (own.host_ids, [*map(list, own.devices)]) == (theirs.host_ids, [*map(list, theirs.devices)])


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


def test_two_hosts_and_equal_links_keep_their_order():
    unlike = islands(2, 2)
    assert device_order(unlike, [1, 0], (2, 1)) == (1, 0)
    equal = dataclasses.replace(unlike, links=tuple(tuple(Link(0.0, FAST) for _ in range(4)) for _ in range(4)))
    assert device_order(equal, [2, 0, 3, 1], (4, 1)) == (2, 0, 3, 1)
