"""Hosts that are slower inside than between them: stages go across hosts, and neighbours to different ones."""

import collections
import dataclasses
import itertools

import numpy as np
import pytest

from alpa_dejavu.clusters.host_classes import slow_inside
from alpa_dejavu.clusters.placement import packings, place, place_stages
from alpa_dejavu.clusters.space import search_space, submeshes
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.rivals import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage
from alpa_dejavu.planning.search._packing import packed
from alpa_dejavu.problem import Cluster, Link, MeshConfig, NoPlanError, Run, StageChoice, Submesh
from alpa_dejavu.slicing import slicer
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


def test_neighbouring_stages_are_on_different_hosts():
    ones = [Submesh(1, 1)] * 8
    assert place(ones, cluster_of()) == [(3 - n % 4,) for n in range(8)]
    assert place(ones, cluster_of(inside=BETWEEN)) == [(3 - n // 2,) for n in range(8)]
    kinds = [[0]] * 8
    placed = place(ones, cluster_of(), kinds)
    assert all(a != b for a, b in itertools.pairwise(placed))
    assert place([Submesh(2, 1), Submesh(2, 1), Submesh(2, 2)], cluster_of()) == [(2, 3), (2, 3), (0, 1)]


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("devices", [2, 4])
def test_submeshes_of_a_set_that_fills_hosts_do(hosts, devices):
    cluster, rng = cluster_of(hosts, devices), np.random.default_rng(hosts * devices)
    space = search_space(cluster, 1)
    for kept in packings(space, cluster):
        chosen = np.flatnonzero(kept)
        for _ in range(40):
            left, stages = cluster.num_devices, []
            while left:
                s = int(rng.choice([s for s in chosen if space.submeshes[s].num_devices <= left]))
                stages.append(StageChoice(0, 0, s, 0))
                left -= space.submeshes[s].num_devices
            taken = collections.Counter()
            for stage, on in zip(stages, place_stages(stages, space, cluster), strict=True):
                taken.update(dict.fromkeys(on, space.submeshes[stage.submesh].devices_per_host))
            assert set(taken.values()) == {devices}


def test_what_doesnt_pack_is_searched_for_again():
    cluster, problem_of = cluster_of(2, 2), chain(3)
    space = search_space(cluster, 4)
    table = cost_table(problem_of, cluster, space, Run(4), CostModels(AnalyticLatency(), AlphaBeta()))
    problem = table.slicing_problem(cluster, space, Run(4))
    costs = np.full_like(problem.costs_s, np.inf)
    names = {(s.num_hosts, s.devices_per_host): n for n, s in enumerate(space.submeshes)}
    # A whole host beside one device of each of two hosts is best, and can't be; what can be costs more.
    costs[0, 0, names[1, 2], 0] = costs[1, 2, names[2, 1], 0] = 1.0
    costs[0, 0, names[2, 1], 0] = 5.0
    mixed = dataclasses.replace(problem, costs_s=costs, per_step_s=None, max_n_succ_stages=None)
    best = slicer("dynamic").slice(mixed)
    with pytest.raises(NoPlanError):
        place_stages(best.stages, space, cluster)
    found = packed(mixed, space, cluster, slicer("dynamic"))
    assert [stage.submesh for stage in found.stages] == [names[2, 1]] * 2
    assert best.cost_s < found.cost_s == found.lower_bound_s


@pytest.mark.parametrize("shape", [(2, 1), (1, 2)])
def test_parts_of_several_hosts_share_the_links_between_them(shape):
    cluster, model = cluster_of(2, 2), chain(4, flop=1e9, parameter_bytes=1e6, activation_bytes=1e6, exchanged=(1e5,))
    config, cuts = MeshConfig(shape, *shape), [(0, 1), (2, 3)]
    stages = tuple(PlacedStage(*cut, (0, 1), config) for cut in cuts)
    task = StrategyTask(model, 1, cluster, 8, CostModels(AnalyticLatency(), AlphaBeta()))
    given = [GivenStage(*cut, Submesh(2, 1), config) for cut in cuts]
    theirs = estimate(with_micro_batch(model, 2), cluster, Run(4), given)
    ours = task.stage_times(stages, 2)
    for mine, stage in zip(ours, theirs.plan.stages, strict=True):
        assert mine.forward_collective_s == pytest.approx(stage.forward_collective_s)
        assert mine.synchronisation_s == pytest.approx(stage.synchronisation_s)
    halved = dataclasses.replace(BETWEEN, bytes_per_s=BETWEEN.bytes_per_s / 2)
    alone = dataclasses.replace(cluster, hosts=tuple(dataclasses.replace(h, num_devices=1) for h in cluster.hosts),
                                links=((INSIDE, halved), (halved, INSIDE)))  # fmt: skip
    expected = StrategyTask(model, 1, alone, 8, CostModels(AnalyticLatency(), AlphaBeta())).stage_times(stages, 2)
    assert [one.synchronisation_s for one in ours] == pytest.approx([one.synchronisation_s for one in expected])
    assert Pipeline(stages, 2, 4).samples == 8
