"""Costs that know where they run: sites of unlike hosts, their prices, what crosses between them, and placement."""

import dataclasses
import itertools

import numpy as np
import pytest

from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.clusters.placement import kinds_of_sites, packs, place_stages
from alpa_dejavu.clusters.space import on_sites, search_space, submeshes
from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.search._packing import packed
from alpa_dejavu.problem import MeshConfig, NoPlanError, Run, SearchSpace, StageChoice, Submesh, host_kinds
from alpa_dejavu.slicing import Exhaustive
from alpa_dejavu.testing import example_cluster
from models import chain, costs_of, planned
from unlike import FAST, SLOW, WITHIN, blind, cluster, host, islands, two_and_two

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


def entry(where, shape, kinds, split, first=0, last=5):
    space = search_space(where, 8)
    s = site(space, where, shape, kinds)
    return first, last, s, config(space, s, split)


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


def test_where_all_hosts_are_alike_stages_may_be_on_any():
    where = example_cluster(4)
    space = search_space(where, 8)
    assert space.hosts is None
    assert on_sites(space, where) is space
    table = table_of(where, space)
    problem = table.slicing_problem(where, space, RUN)
    assert problem.sites.alike
    assert problem.sites.available.tolist() == [where.num_devices]
    assert problem.devices == "exactly"
    assert np.array_equal(problem.costs_s, table.costs_s)


def test_on_equal_hosts_a_site_costs_what_the_submesh_costs():
    where = example_cluster(4)
    space = search_space(where, 8)
    hosts = tuple(tuple(range(submesh.num_hosts)) for submesh in space.submeshes)
    known, anywhere = table_of(where, dataclasses.replace(space, hosts=hosts)), table_of(where, space)
    for name in ("compute_s", "collective_s", "per_step_s", "offered", "max_n_succ_stages", "compute_costs_s"):
        assert np.array_equal(getattr(known, name), getattr(anywhere, name)), name
    for a, b in itertools.product(range(len(hosts)), repeat=2):
        assert known.interstage.seconds(3, a, b) == anywhere.interstage.seconds(3, a, b)


@pytest.mark.parametrize("count", [2, 3, 5, 8])
def test_a_bounded_number_of_mixtures(count):
    where = cluster([host(f"{kind}{n}", 1e12 * (kind + 1)) for kind in range(count) for n in range(4)])
    space = search_space(where, 64)
    assert len(space.submeshes) <= {2: 30, 3: 80}.get(count, 8 * count)
    assert kinds_of_sites(space, where).max(axis=0).tolist() == [8] * count, "all of each kind"
    assert kinds_of_sites(space, where).sum(axis=1).max() == where.num_devices or 64 % where.num_devices


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


def test_an_entry_costs_what_its_own_device_takes():
    where = two_and_two(slow=0.25e12)
    table = table_of(where)
    fast, slow, mixed = (table.compute_s[entry(where, (2, 2), kinds, (4, 1))] for kinds in ((0, 0), (1, 1), (0, 1)))
    starts = 2 * 1e-5
    assert fast == pytest.approx(6 * 3e9 / 4 / 1e12 + starts)
    assert slow == pytest.approx(4 * (fast - starts) + starts)
    assert mixed == slow, "a stage on unlike devices computes at the slowest"


def test_an_entry_has_the_memory_of_its_smallest_device():
    where = two_and_two(memory_bytes=2.0**30)
    table, space = table_of(where), search_space(where, 8)
    limits = {
        kinds: table.memory_limit_bytes[site(space, where, (len(kinds), 2), kinds)]
        for kinds in ((0,), (1,), (0, 0), (0, 1))
    }
    assert limits == {(0,): 2.0**34, (1,): 2.0**30, (0, 0): 2.0**34, (0, 1): 2.0**30}
    large = table_of(where, model=chain(6, parameter_bytes=2.0**28))
    assert np.isfinite(large.costs_s[entry(where, (1, 1), (0,), (1, 1), 0, 4)])
    assert np.isinf(large.costs_s[entry(where, (1, 1), (1,), (1, 1), 0, 4)])


def test_collectives_are_over_the_links_between_the_hosts_of_the_stage():
    where = islands()
    assert kinds_of(where) == (0, 1, 0, 1)
    table = table_of(where)
    near, far = (table.synchronisation_s[entry(where, (2, 2), kinds, (4, 1))] for kinds in ((0, 0), (0, 1)))
    of = [AlphaBeta().seconds("all_reduce", 6e5, Group(where, hosts)) for hosts in ((0, 0, 2, 2), (0, 0, 1, 1))]
    assert [near, far] == pytest.approx([float(each) for each in of])
    a, b = (site(search_space(where, 8), where, (2, 2), kinds) for kinds in ((0, 0), (1, 1)))
    assert (table.devices[a], table.memory[a]) == (table.devices[b], table.memory[b]), "like sites are priced once"


def test_a_tensor_parallel_group_in_each_host_waits_for_the_slowest():
    hosts = [host("a"), host("b")]
    where = cluster(hosts)
    slow = dataclasses.replace(WITHIN, bytes_per_s=1e8)
    where = dataclasses.replace(where, links=((WITHIN, FAST), (FAST, slow)))
    table = table_of(where)
    fast, alone = (table.collective_s[entry(where, (1, 2), (kind,), (1, 2))] for kind in (0, 1))
    both = table.collective_s[entry(where, (2, 2), (0, 1), (2, 2))]
    assert alone > 10 * fast
    assert both > 0.4 * alone, "half of the bytes for each replica, over the slow host's link"


def test_what_crosses_goes_over_the_link_between_the_two_stages():
    where, space = islands(), search_space(islands(), 8)
    crossed = table_of(where).interstage
    a, b = (site(space, where, (1, 2), (kind,)) for kind in (0, 1))
    near, far = crossed.links[a, a], crossed.links[a, b]
    sending = [(latency + 1e6 / rate) for latency, rate in (FAST.sending, SLOW.sending)]
    assert crossed.forward_s[3, [near, far]] == pytest.approx(sending)
    assert crossed.backward_s[3, [near, far]] == pytest.approx(sending)
    assert not crossed.forward_s[0].any(), "nothing comes before layer 0"
    assert all(a != b for a, b in (crossed.ends[near], crossed.ends[far]))
    both = site(space, where, (2, 2), (0, 0))
    wide = crossed.forward_s[3, crossed.links[both, both]]
    assert wide == pytest.approx(FAST.sending[0] + 1e6 / 2 / FAST.bytes_per_s), "two hosts send at a time"


def test_all_that_was_made_before_a_cut_and_is_used_behind_it_crosses():
    from alpa_dejavu.costs.interstage import CutBytes
    from alpa_dejavu.problem import Model, Tensor

    model = chain(4, activation_bytes=10.0)
    skips = (Tensor(7.0, "activation", 0, (3, 4)), Tensor(3.0, "activation", 4, (7,)))
    crossed = CutBytes.of(Model(model.layers, (*model.tensors, *skips)))
    assert crossed.forward_bytes.tolist() == [0.0, 17.0, 17.0, 17.0]
    assert crossed.forward_tensors.tolist() == [0.0, 2.0, 2.0, 2.0]
    assert crossed.backward_bytes.tolist() == [0.0, 13.0, 13.0, 13.0]


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


def test_placement_takes_hosts_of_the_kinds_and_packs_parts():
    where = islands()
    space = search_space(where, 8)
    one, half, pair = (site(space, where, *rest) for rest in (((1, 2), (1,)), ((1, 1), (1,)), ((2, 2), (0, 0))))
    stages = [StageChoice(n, n, s, 0) for n, s in enumerate((half, one, half, pair))]
    assert place_stages(stages, space, where) == [(3,), (1,), (3,), (0, 2)]


def test_parts_that_do_not_pack_are_left_out():
    hosts = [host("a", devices=6), host("b", devices=6), host("c", 1e11, devices=1)]
    where = cluster(hosts)
    space = SearchSpace(
        (Submesh(1, 4), Submesh(1, 2), Submesh(1, 6)),
        tuple((MeshConfig((n, 1), n, 1),) for n in (4, 2, 6)),
        hosts=((0,), (0,), (0,)),
    )
    assert packs(space, where).tolist() == [False, True, True]
    table = table_of(where, space, chain(3))
    problem = table.slicing_problem(where, space, RUN)
    problem = dataclasses.replace(problem, num_stages=3)
    costs = np.array(problem.costs_s)
    costs[:, :, 0] /= 100
    problem = dataclasses.replace(problem, costs_s=costs)
    anywhere = dataclasses.replace(problem, sites=problem.sites.without_capacity())
    with pytest.raises(NoPlanError, match="don't fit the hosts"):
        place_stages(Exhaustive().slice(anywhere).stages, space, where)
    best = Exhaustive().slice(problem)
    place_stages(best.stages, space, where)
    assert sum(stage.submesh == 0 for stage in best.stages) == 2, "one part of 4 on each host of 6"
    found = packed(anywhere, space, where, Exhaustive())
    assert found.stages == best.stages
    assert found.lower_bound_s == found.cost_s == best.cost_s


def test_alpas_submeshes_are_put_on_the_kinds_that_have_them():
    where = two_and_two()
    shapes = (Submesh(1, 1), Submesh(2, 2), Submesh(4, 2))
    rows = tuple((MeshConfig((s.num_devices, 1), s.num_devices, 1),) for s in shapes)
    found = on_sites(SearchSpace(shapes, rows), where)
    assert kinds_of_sites(found, where).tolist() == [[1, 0], [4, 0], [0, 1], [0, 4], [2, 2], [4, 4]]
    with pytest.raises(NoPlanError, match="none of the submeshes"):
        on_sites(SearchSpace((Submesh(3, 5),), ((MeshConfig((15, 1), 15, 1),),)), where)


def test_the_faster_hosts_have_more_layers():
    where = cluster([host("a", devices=1), host("b", 0.5e12, devices=1)])
    model = chain(6, flop=1e9, parameter_bytes=1e9, activation_bytes=1e3, exchanged=(1e8,))
    made = planned(model, where, 2, RUN, slicing="exhaustive").plan
    layers = dict.fromkeys("ab", 0)
    for stage in made.stages:
        assert len(stage.hosts) == 1
        layers[stage.hosts[0]] += stage.num_layers
    assert layers == {"a": 4, "b": 2}


def test_a_slow_link_has_the_smallest_crossing():
    from alpa_dejavu.problem import Model

    model = chain(6, flop=1e9, parameter_bytes=1e9, activation_bytes=4e6, exchanged=(1e8,))
    small = [
        dataclasses.replace(t, num_bytes=1e4) if t.role == "activation" and t.producer in (1, 2 * 6 - 1 - 2) else t
        for t in model.tensors
    ]
    model = Model(model.layers, tuple(small))
    where = cluster([host("a", devices=1), host("b", devices=1)], lambda a, b: SLOW)
    where = dataclasses.replace(where, hosts=(where.hosts[0], host("b", 0.99e12, devices=1)))
    made = planned(model, where, 2, RUN, slicing="exhaustive").plan
    assert made.stages[0].layers == (0, 1), "the cut with the small tensor, though the halves are uneven"


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


def test_steps_are_drawn_by_the_links_between_the_stages():
    from alpa_dejavu.planning.search.uncertainty import (
        CLASSES,
        Errors,
        Factors,
        Resolver,
        confidence,
        meet,
        redrawn,
        step_draws,
    )

    where = islands(devices=1)
    space = search_space(where, 4)
    costs = costs_of(MODEL, where, space, RUN)
    table, problem = costs.table, costs.problem
    a, b = (site(space, where, (2, 1), kinds) for kinds in ((0, 0), (1, 1)))
    stages = tuple(StageChoice(3 * n, 3 * n + 2, s, 0) for n, s in enumerate((a, b)))
    found = costs.sliced(Exhaustive())
    slicing = dataclasses.replace(found.slicing, stages=stages, cost_s=problem.total_s(stages))
    one = dataclasses.replace(found, slicing=slicing, simulated_s=None)
    resolver = Resolver()
    meet(table, space, resolver)
    errors = Errors.unmeasured(resolver)
    shared = dataclasses.replace(costs, cluster=dataclasses.replace(where, cores=2))
    on_one_cpu = dataclasses.replace(one, costs=shared)
    work = shared.problem.total_s(stages)
    assert step_draws([on_one_cpu], errors, errors.middle)[0, 0] == pytest.approx(work)
    middle = step_draws([one], errors, errors.middle)
    assert middle[0, 0] == pytest.approx(problem.total_s(stages))
    common = np.ones((1, len(CLASSES)))
    common[0, CLASSES.index("send between hosts")] = 10.0
    factors = Factors(common, errors.middle.own)
    slower = step_draws([one], errors, factors)
    crossed = problem.sites.crossing(3, a, b)
    assert slower[0, 0] - middle[0, 0] == pytest.approx(9 * crossed * RUN.num_micro_batches)
    drawn = redrawn(table, space, resolver, factors)
    assert drawn.slicing_problem(where, space, RUN).sites.crossing(3, a, b) == pytest.approx(10 * crossed)
    assert 0 <= confidence([one, found]).probability <= 1


def test_hosts_that_share_a_cpu_are_all_used_since_the_others_would_not_be_faster():
    where = islands(devices=1)
    assert table_of(where).slicing_problem(where, search_space(where, 8), RUN).devices == "at most"
    shared = dataclasses.replace(where, cores=4)
    made = planned(chain(6, flop=1e9, parameter_bytes=1e5, activation_bytes=1e3, exchanged=(1e3,)), shared,
                8, RUN).plan  # fmt: skip
    assert {host for stage in made.stages for host in stage.hosts} == {host.name for host in shared.hosts}


def test_a_report_shows_which_hosts_a_submesh_stands_for():
    from alpa_dejavu.report import html_report
    from pages import page_data

    where = two_and_two(devices=1)
    given = [
        GivenStage(3 * n, 3 * n + 2, Submesh(2, 1), MeshConfig((2, 1), 2, 1), names)
        for n, names in enumerate((("c", "d"), ("b", "a")))
    ]
    page = html_report(estimate(MODEL, where, RUN, given))
    (menu,) = page_data(page)["charts"]["costs"]["layout"]["updatemenus"]
    labels = [button["label"] for button in menu["buttons"]]
    assert "2 x 1 like c, d (in the plan)" in labels
    assert "2 x 1 like b, a (in the plan)" in labels
    assert "among a and 1 alike" in page


def test_what_does_not_fit_is_told_of_the_devices_that_have_most():
    where = two_and_two(memory_bytes=2.0**30)
    with pytest.raises(NoPlanError, match=r"the 4 devices that have most \(of 8\) have 16.00 GiB each"):
        planned(chain(2, parameter_bytes=2.0**36), where, 8, RUN, slicing="exhaustive")
