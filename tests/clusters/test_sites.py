"""Costs that know where they run: sites of unlike hosts, their prices, what crosses between them, and placement."""

import dataclasses
import itertools

import numpy as np
import pytest

from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.clusters.placement import kinds_of_sites, place_stages
from alpa_dejavu.clusters.space import search_space, submeshes
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.problem import MeshConfig, NoPlanError, Run, StageChoice, Submesh, host_kinds
from alpa_dejavu.slicing import Exhaustive
from alpa_dejavu.testing import example_cluster
from models import chain, costs_of, planned
from unlike import FAST, SLOW, blind, cluster, host, islands, two_and_two

MODEL, RUN = chain(6, flop=1e9, parameter_bytes=1e5, activation_bytes=1e6, exchanged=(1e5,)), Run(8)


def table_of(where, space=None, model=MODEL, run=RUN):
    return cost_table(model, where, space or search_space(where, 8), run, CostModels(AnalyticLatency(), AlphaBeta()))


def site(space, where, shape, kinds):
    of = kinds_of(where)
    return next(
        s
        for s, (submesh, hosts) in enumerate(zip(space.submeshes, space.hosts, strict=True))
        if (submesh.num_hosts, submesh.devices_per_host) == shape and sorted(of[h] for h in hosts) == sorted(kinds)
    )


def config(space, s, split):
    return next(c for c, one in enumerate(space.configs[s]) if one and one.shape == split and one.batch_forced)


def test_hosts_of_a_kind_are_alike_and_the_sites_are_of_kinds_and_mixtures():
    where = two_and_two()
    space = search_space(where, 8)
    uses = kinds_of_sites(space, where)
    assert host_kinds(where) == kinds_of(where) == (0, 0, 1, 1)
    found = {(s.num_hosts, s.devices_per_host, *use) for s, use in zip(space.submeshes, uses.tolist(), strict=True)}
    own = {(1, 1, 1, 0), (1, 2, 2, 0), (2, 2, 4, 0), (1, 1, 0, 1), (1, 2, 0, 2), (2, 2, 0, 4)}
    assert own < found
    assert (2, 2, 2, 2) in found
    assert (4, 2, 4, 4) in found
    assert len(found) == len(space.submeshes), "each site once"
    assert all(sum(use) == s.num_devices for s, use in zip(space.submeshes, uses.tolist(), strict=True))


def test_on_equal_hosts_a_site_costs_what_the_submesh_costs():
    where = example_cluster(4)
    space = search_space(where, 8)
    hosts = tuple(tuple(range(submesh.num_hosts)) for submesh in space.submeshes)
    known, anywhere = table_of(where, dataclasses.replace(space, hosts=hosts)), table_of(where, space)
    for name in ("compute_s", "collective_s", "per_step_s", "offered", "max_n_succ_stages", "compute_costs_s"):
        assert np.array_equal(getattr(known, name), getattr(anywhere, name)), name
    for a, b in itertools.product(range(len(hosts)), repeat=2):
        assert known.interstage.seconds(3, a, b) == anywhere.interstage.seconds(3, a, b)


def test_hosts_may_differ_in_their_number_of_devices():
    where = cluster([host("a", devices=3), host("b", devices=6), host("c", devices=4)])
    shapes = {(s.num_hosts, s.devices_per_host) for s in submeshes(where)}
    assert {(1, 1), (1, 2), (1, 3), (1, 4), (1, 6), (3, 3), (2, 4)} <= shapes
    space = search_space(where, 12)
    for submesh, row in zip(space.submeshes, space.configs, strict=True):
        for one in filter(None, row):
            assert one.data_parallel * one.tensor_parallel == submesh.num_devices
            assert submesh.devices_per_host % one.tensor_parallel == 0
    made = planned(chain(2), where, 12, RUN, slicing="exhaustive").plan
    used = dict.fromkeys("abc", 0)
    for stage in made.stages:
        for name in stage.hosts:
            used[name] += stage.submesh.devices_per_host
    assert all(used[each.name] <= each.num_devices for each in where.hosts)


def test_a_plans_cost_has_each_crossing_once():
    where, space = two_and_two(), search_space(two_and_two(), 8)
    table = table_of(where, space)
    problem = table.slicing_problem(where, space, RUN)
    stages = [
        StageChoice(first, last, s, config(space, s, (2, 1)))
        for first, last, kind in ((0, 3, 0), (4, 5, 1))
        for s in [site(space, where, (1, 2), (kind,))]
    ]
    alone = [float(table.costs_s[s.first, s.last, s.submesh, s.config]) for s in stages]
    once = FAST.sending[0] + 1e6 / FAST.sending[1]
    assert problem.stage_costs_s(stages) == pytest.approx([alone[0], alone[1] + 2 * once])
    taken = table.interstage_s(stages, space, place_stages(stages, space, where))
    assert taken == [pytest.approx((0.0, once)), pytest.approx((once, 0.0))]
    assert table.interstage_s(stages, space) == taken


@pytest.mark.parametrize("slow", [0.25e12, 0.9e12, SLOW, FAST])
def test_no_worse_than_a_plan_found_blind_at_its_true_price(slow):
    where = two_and_two(slow, 1) if isinstance(slow, float) else islands(slow, 1)
    model = chain(4, flop=1e9, parameter_bytes=1e6, activation_bytes=1e6, exchanged=(1e5,))
    alike = blind(where)
    space = search_space(alike, 8)
    seen = costs_of(model, alike, space, RUN).sliced(Exhaustive())
    stages = [
        GivenStage(
            s.first, s.last, space.submeshes[s.submesh], space.configs[s.submesh][s.config],
            tuple(alike.hosts[host].name for host in hosts),
        )
        for s, hosts in zip(seen.stages, seen.placed, strict=True)
    ]  # fmt: skip
    truth = estimate(model, where, RUN, stages).plan.step_s
    ours = planned(model, where, 8, RUN, slicing="exhaustive").plan
    assert ours.step_s <= truth * (1 + 1e-9)


def test_a_plan_is_estimated_on_the_hosts_that_it_names():
    where = two_and_two(devices=1)
    made = planned(MODEL, where, 8, RUN, slicing="exhaustive").plan
    given = [
        GivenStage(
            *stage.layers, stage.submesh, MeshConfig(stage.logical_mesh, *stage.logical_mesh, dict(stage.options)),
            stage.hosts,
        )
        for stage in made.stages
    ]  # fmt: skip
    again = estimate(MODEL, where, RUN, given).plan
    assert again.step_s == pytest.approx(made.step_s)
    assert [stage.hosts for stage in again.stages] == [stage.hosts for stage in made.stages]
    assert [stage.cost_s for stage in again.stages] == pytest.approx([stage.cost_s for stage in made.stages])
    other = dict(zip("abcd", "cdab", strict=True))
    swapped = [dataclasses.replace(s, hosts=tuple(other[name] for name in s.hosts)) for s in given]
    assert estimate(MODEL, where, RUN, swapped).plan.step_s > 1.5 * made.step_s


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ((("x",), ("c",)), "stage 0 is on host 'x', but unlike has 'a'"),
        ((("a", "b"), ("c",)), r"stage 0 is on 1 hosts, but names \['a', 'b'\]"),
        ((("a",), ("a",)), "its stages take 4 devices of host 'a', which has 2"),
    ],
)
def test_hosts_that_cannot_be_are_refused(hosts, said):
    one = MeshConfig((2, 1), 2, 1)
    given = [GivenStage(3 * n, 3 * n + 2, Submesh(1, 2), one, names) for n, names in enumerate(hosts)]
    with pytest.raises(ValueError, match=said):
        estimate(MODEL, two_and_two(), RUN, given)


def test_hosts_that_share_a_cpu_are_all_used_since_the_others_would_not_be_faster():
    where = islands(devices=1)
    assert table_of(where).slicing_problem(where, search_space(where, 8), RUN).devices == "at most"
    shared = dataclasses.replace(where, cores=4)
    made = planned(chain(6, flop=1e9, parameter_bytes=1e5, activation_bytes=1e3, exchanged=(1e3,)), shared,
                8, RUN).plan  # fmt: skip
    assert {host for stage in made.stages for host in stage.hosts} == {host.name for host in shared.hosts}


def test_what_does_not_fit_is_told_of_the_devices_that_have_most():
    where = two_and_two(memory_bytes=2.0**30)
    with pytest.raises(NoPlanError, match=r"the 4 devices that have most \(of 8\) have 16.00 GiB each"):
        planned(chain(2, parameter_bytes=2.0**36), where, 8, RUN, slicing="exhaustive")
