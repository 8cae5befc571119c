"""Hosts that are slower inside than between them: stages go across hosts, and neighbours to different ones."""

import collections
import dataclasses
import itertools

import pytest

from alpa_dejavu.clusters.host_classes import slow_inside
from alpa_dejavu.clusters.space import search_space, submeshes
from alpa_dejavu.problem import Cluster, Link, Run, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain, planned
from unlike import device

INSIDE, BETWEEN = Link(1e-5, 1e9), Link(1e-5, 1e10)


def cluster_of(hosts=4, devices=2, inside=INSIDE, between=BETWEEN):
    return Cluster.uniform("slow inside", "abcdefgh"[:hosts], device(1e12), devices, inside, between)


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (cluster_of(), True),
        (cluster_of(inside=Link(1e-5, 9e9)), False),
        (cluster_of(inside=BETWEEN, between=INSIDE), False),
        (cluster_of(inside=Link(1e-5, 1e9, send_bytes_per_s=1e10)), False),
        (cluster_of(hosts=1), False),
        (cluster_of(devices=1), False),
        (dataclasses.replace(cluster_of(), cores=8), False),
        (example_cluster(2), False),
    ],
)
def test_links_inside_are_clearly_slower_or_they_are_not(cluster, expected):
    assert slow_inside(cluster) == expected


def test_parts_of_several_hosts_are_offered_where_that_is_better():
    def shapes(cluster):
        return {(s.num_hosts, s.devices_per_host) for s in submeshes(cluster)}

    usual = {(1, 1), (1, 2), (1, 4), (2, 4), (4, 4)}
    assert shapes(cluster_of(devices=4)) == usual | {(2, 1), (4, 1), (4, 2)}
    assert shapes(cluster_of(devices=4, inside=BETWEEN)) == usual
    space = search_space(cluster_of(), 8)
    most = {s: max(c.tensor_parallel for c in row if c) for s, row in zip(space.submeshes, space.configs, strict=True)}
    assert most[Submesh(4, 1)] == 4, "tensor-parallel groups may go across hosts there"
    assert most[Submesh(2, 2)] == most[Submesh(1, 2)] == 2


def test_a_plan_goes_around_slow_insides_and_survives_a_host():
    cluster = cluster_of()
    model = chain(8, flop=1e9, parameter_bytes=3e7, activation_bytes=1e6, exchanged=(1e6,))
    made = planned(model, cluster, 8, Run(8), communication="links", contingencies=True).plan
    assert all(not set(a.hosts) & set(b.hosts) for a, b in itertools.pairwise(made.stages))
    assert all(stage.submesh.devices_per_host == 1 for stage in made.stages)
    assert set(made.contingencies) == set("abcd")
    for lost, other in made.contingencies.items():
        taken = collections.Counter()
        for stage in other.stages:
            taken.update(dict.fromkeys(stage.hosts, stage.submesh.devices_per_host))
        assert lost not in taken
        assert max(taken.values()) <= 2
