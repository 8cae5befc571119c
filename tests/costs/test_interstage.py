"""Interstage transfer: the lesser of both sides sets the shares, and all who price stages say the same."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.interstage import InterstageTransfer
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.table import cost_table
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.rivals import StrategyTask
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage
from alpa_dejavu.problem import Link, MeshConfig, Run, SearchSpace, StageChoice, Submesh
from alpa_dejavu.slicing import Dynamic, Exhaustive
from alpa_dejavu.testing import example_cluster
from models import chain, planned
from unlike import islands, two_and_two

CARD = Link(0.0, 25e9 / 8)
BYTES = 25e9 / 8 * 10.8e-3
"""What a card of 25 Gbit/s takes 10.8 ms for."""


def hosts_of(count, devices=4):
    base = example_cluster(count)
    links = tuple(tuple(base.links[0][0] if a == b else CARD for b in range(count)) for a in range(count))
    hosts = tuple(dataclasses.replace(host, num_devices=devices) for host in base.hosts)
    return dataclasses.replace(base, hosts=hosts, links=links)


def space_of(cluster, *shapes, named=False):
    submeshes = tuple(Submesh(*shape) for shape in shapes)
    configs = tuple((MeshConfig((s.num_devices, 1), s.num_devices, 1),) for s in submeshes)
    hosts = tuple(tuple(range(s.num_hosts)) for s in submeshes) if named else None
    return SearchSpace(submeshes, configs, math.inf, hosts)


@pytest.mark.parametrize("named", [False, True])
def test_what_goes_from_one_host_to_four_takes_what_the_senders_card_takes(named):
    cluster, model = hosts_of(5), chain(3, activation_bytes=BYTES)
    table = cost_table(model, cluster, space_of(cluster, (1, 4), (4, 4), named=named), Run(4), CostModels.named())
    one, four = range(2)
    ahead, back = table.interstage.seconds(1, one, four)
    assert (ahead, back) == pytest.approx((10.8e-3, 10.8e-3))
    assert table.interstage.seconds(1, four, one) == pytest.approx((10.8e-3, 10.8e-3))
    assert table.interstage.seconds(1, four, four) == pytest.approx((2.7e-3, 2.7e-3))
    stages = [StageChoice(0, 0, one, 0), StageChoice(1, 2, four, 0)]
    space = space_of(cluster, (1, 4), (4, 4))
    assert table.interstage_s(stages, space, [(4,), (0, 1, 2, 3)]) == [
        pytest.approx((0, back)),
        pytest.approx((ahead, 0)),
    ]


@pytest.mark.parametrize("seed", range(12))
def test_dynamic_is_exact_where_what_crosses_depends_on_both_stages(seed):
    rng = np.random.default_rng(seed)
    cluster = hosts_of(4, devices=2)
    model = chain(
        5, flop=rng.choice([1e8, 1e9, 1e10]), activation_bytes=rng.choice([1e4, 1e6, 3e7]), parameter_bytes=1e6
    )
    space = search_space(cluster, 8)
    table = cost_table(model, cluster, space, Run(int(rng.integers(1, 9))), CostModels.named())
    problem = table.slicing_problem(cluster, space, Run(int(rng.integers(1, 9))))
    factors = rng.uniform(0.3, 3.0, problem.costs_s.shape)
    problem = dataclasses.replace(problem, costs_s=problem.costs_s * factors)
    best, found = Exhaustive().slice(problem), Dynamic().slice(problem)
    assert found.cost_s == pytest.approx(best.cost_s, rel=1e-12)
    assert found.gap == 0


@st.composite
def pipelines(draw):
    """A cluster, a model and placed stages that are submeshes, on distinct devices."""
    kind = draw(st.sampled_from(["alike", "islands", "fast and slow", "one host"]))
    per_host = draw(st.sampled_from([2, 4]))
    cluster = {
        "alike": lambda: hosts_of(4, per_host),
        "islands": lambda: islands(devices=per_host),
        "fast and slow": lambda: two_and_two(devices=per_host),
        "one host": lambda: hosts_of(1, per_host),
    }[kind]()
    free = {host: known.num_devices for host, known in enumerate(cluster.hosts)}
    chosen = []
    for _ in range(draw(st.integers(1, 4))):
        hosts = draw(st.permutations(sorted(free)))
        each = draw(st.sampled_from([1, 2, per_host]))
        fitting = [host for host in hosts if free[host] >= each]
        count = draw(st.integers(1, 4))
        if len(fitting) >= count:
            for host in fitting[:count]:
                free[host] -= each
            chosen.append((tuple(fitting[:count]), each))
    chosen = chosen or [((0,), 1)]
    layers = len(chosen) + draw(st.integers(0, 2))
    cuts = sorted(draw(st.permutations(range(1, layers)))[: len(chosen) - 1])
    placed, stages = [], []
    for (hosts, each), first, end in zip(chosen, [0, *cuts], [*cuts, layers], strict=True):
        size = len(hosts) * each
        along = draw(st.sampled_from([n for n in (1, 2, 4) if each % n == 0]))
        config = MeshConfig(
            (size // along, along), size // along, along, remat=draw(st.sampled_from(["none", "layer"]))
        )
        placed.append(PlacedStage(first, end - 1, tuple(host for host in hosts for _ in range(each)), config))
        names = tuple(cluster.hosts[host].name for host in hosts)
        stages.append(GivenStage(first, end - 1, Submesh(len(hosts), each), config, names))
    model = chain(
        layers, flop=1e9, parameter_bytes=1e6, activation_bytes=draw(st.sampled_from([1e4, 1e7])), exchanged=(1e5,)
    )
    return cluster, model, tuple(placed), stages


@settings(max_examples=60, deadline=None)
@given(pipelines(), st.sampled_from(["alpha-beta", "links"]), st.sampled_from([1, 4, 16]))
def test_a_strategys_stages_take_what_an_estimate_says(drawn, communication, count):
    cluster, model, placed, stages = drawn
    models = CostModels.named(communication=communication)
    task = StrategyTask(model, 1, cluster, 16 * count, models)
    theirs = task.step_s(Pipeline(placed, 16, count))
    ours = estimate(with_micro_batch(model, 16), cluster, Run(count), stages, communication=communication)
    assert theirs == pytest.approx(ours.plan.step_s, rel=1e-9)
    times = task.stage_times(placed, 16)
    for stage, found in zip(ours.plan.stages, times, strict=True):
        assert found.forward_s == pytest.approx(stage.forward_s, rel=1e-9)
        assert found.per_step_s == pytest.approx(stage.per_step_s, rel=1e-9)
        assert found.memory_limit_bytes == stage.memory_limit_bytes
    taken = [0.0, *(stage.forward_send_s for stage in times[:-1])]
    assert [stage.forward_boundary_s for stage in ours.plan.stages] == pytest.approx(taken, rel=1e-9)


def test_within_a_host_the_stage_with_fewer_devices_sets_the_shares():
    cluster, model = example_cluster(1), chain(3, activation_bytes=4e7)
    transfer = InterstageTransfer(model, cluster, AlphaBeta())
    link = cluster.links[0][0]
    for before, after, shares in (((0,), (0, 0, 0), 1), ((0, 0, 0), (0,), 1), ((0, 0), (0, 0), 2)):
        assert transfer.between(1, before, after)[0] == pytest.approx(link.latency_s + 4e7 / shares / link.bytes_per_s)
    table = transfer.table(space_of(cluster, (1, 1), (1, 2), (1, 4)))
    for a, b in np.ndindex(3, 3):
        assert table.seconds(1, a, b) == transfer.between(1, (0,) * 2**a, (0,) * 2**b)


@pytest.mark.parametrize("hosts", [((0,), (1, 2)), ((0, 1), (2, 3)), ((0, 0), (0, 1)), ((2,), (2,)), ((0, 1), (1, 2))])
def test_more_hosts_on_one_side_take_no_less_than_on_both(hosts):
    transfer = InterstageTransfer(chain(2, activation_bytes=1e7), hosts_of(4), AlphaBeta())
    before, after = hosts
    there, back = transfer.between(1, before, after), transfer.between(1, after, before)
    assert there == pytest.approx(back)
    fewer = min(len({*before}), len({*after}))
    if not {*before} & {*after}:
        assert there[0] == pytest.approx(1e7 / fewer / CARD.bytes_per_s)


@settings(max_examples=30, deadline=None)
@given(st.sets(st.integers(0, 3), min_size=1), st.sets(st.integers(0, 3), min_size=1))
def test_all_pairs_of_hosts_send_though_only_unlike_ones_are_looked_at(before, after):
    transfer = InterstageTransfer(chain(2, activation_bytes=1e7), two_and_two(), AlphaBeta())
    shares = 1 if len(before | after) == 1 else min(len(before), len(after))
    every = [transfer.seconds((a, b), shares)[:, 1] for a in before for b in after]
    assert transfer.between(1, tuple(before), tuple(after)) == tuple(np.max(every, axis=0))


def test_pipelines_that_send_at_a_time_share_the_link():
    transfer = InterstageTransfer(chain(2, activation_bytes=1e7), hosts_of(2), AlphaBeta())
    alone, both = (transfer.between(1, (0,), (1,), {(0, 1): count}) for count in (1, 2))
    assert both == pytest.approx((2 * alone[0], 2 * alone[1]))


def test_sends_that_take_longer_are_longer_everywhere():
    cluster = hosts_of(2)
    plain = InterstageTransfer(chain(2, activation_bytes=1e7), cluster, AlphaBeta())
    scaled = plain.scaled(2.0, 3.0)
    assert scaled.between(1, (0,), (0,))[0] == pytest.approx(2 * plain.between(1, (0,), (0,))[0])
    assert scaled.between(1, (0,), (1,))[0] == pytest.approx(3 * plain.between(1, (0,), (1,))[0])
    space = space_of(cluster, (1, 4), (2, 4))
    assert scaled.table(space).forward_s == pytest.approx(3 * plain.table(space).forward_s)


def test_a_plans_stages_in_one_host_send_within_it():
    cluster = hosts_of(2, devices=2)
    model = chain(4, flop=1e9, parameter_bytes=1e6, activation_bytes=1e6)
    made = planned(model, cluster, space_of(cluster, (1, 1)), Run(8)).plan
    link, between = cluster.links[0][0], CARD
    for before, after in zip(made.stages, made.stages[1:], strict=False):
        way = link if before.hosts == after.hosts else between
        assert after.forward_boundary_s == pytest.approx(way.sending[0] + 1e6 / way.sending[1])


def test_stages_that_have_to_share_slow_hosts_are_priced_by_the_links_within_them():
    slow = Link(0.0, CARD.bytes_per_s / 5)
    cluster = hosts_of(2)
    links = tuple(tuple(slow if a == b else CARD for b in range(2)) for a in range(2))
    transfer = InterstageTransfer(
        chain(2, activation_bytes=1e7), dataclasses.replace(cluster, links=links), AlphaBeta()
    )
    table = transfer.table(space_of(cluster, (1, 1), (2, 1), (2, 2)))
    whole, half = 1e7 / slow.bytes_per_s, 1e7 / 2 / slow.bytes_per_s
    assert table.seconds(1, 0, 0)[0] == pytest.approx(1e7 / CARD.bytes_per_s), "they can be apart"
    assert table.seconds(1, 0, 1)[0] == pytest.approx(whole)
    assert table.seconds(1, 1, 2)[0] == table.seconds(1, 2, 2)[0] == pytest.approx(half)
    assert table.seconds(1, 1, 2) == transfer.between(1, (0, 1), (0, 0, 1, 1))
