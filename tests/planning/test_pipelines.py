"""Synchronous data-parallel pipelines: their step by hand, by other means, and by trying all of them."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.calibration import Prices
from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.planning import PlanningTask, plan_model
from alpa_dejavu.planning.rivals import (
    ByStrategy,
    DataParallelPipelines,
    Dejavu,
    StrategyTask,
    UnlikePipelinesError,
    as_planned,
)
from alpa_dejavu.planning.rivals._exchange import exchanges
from alpa_dejavu.planning.rivals._orders import groupings, hosts_of
from alpa_dejavu.planning.rivals._pipelines import _as_one, shared, with_layers_moved
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, as_one, config_of, cut_alike
from alpa_dejavu.planning.search.given_stages import given_candidate, given_stages
from alpa_dejavu.planning.search.models.model_source import GivenModel
from alpa_dejavu.planning.task import Clock
from alpa_dejavu.problem import Cluster, Device, Host, Link, Run
from alpa_dejavu.simulation.step import simulate
from models import chain

ALONE = config_of(1, 1)
OURS = DataParallelPipelines(("none",), (0,))
FLOP, PARAMETER, ACTIVATION = 1e9, 1e6, 1e4
RATE, BETWEEN, WITHIN = 1e12, 1e9, 1e10


def device(name="fast", rate=RATE, memory_bytes=2.0**30):
    return Device(name, memory_bytes, {"float32": rate}, 1e15, 1e15)


FAST, SLOW = device(), device("slow", RATE / 2)


def cluster_of(devices, per_host=1, between=BETWEEN):
    hosts = tuple(Host(f"host-{n}", one, per_host) for n, one in enumerate(devices))
    links = tuple(tuple(Link(0.0, WITHIN if a == b else between) for b in range(len(hosts))) for a in range(len(hosts)))
    return Cluster("made up", hosts, links)


def task_of(cluster, layers=4, batch=16, parameter_bytes=PARAMETER, activation_bytes=ACTIVATION, **more):
    model = chain(layers, FLOP, parameter_bytes, activation_bytes, exchanged=())
    return StrategyTask(model, 1, cluster, batch, CostModels(AnalyticLatency(), AlphaBeta()), **more)


def pipeline(cuts, hosts, count, micro_batch=1, config=ALONE):
    """Stages that end before the given layers, each with all its devices on one host."""
    firsts = (0, *cuts[:-1])
    size = config.data_parallel * config.tensor_parallel
    stages = (PlacedStage(a, b - 1, (host,) * size, config) for a, b, host in zip(firsts, cuts, hosts, strict=True))
    return Pipeline(tuple(stages), micro_batch, count)


def test_two_unlike_cuts_by_hand():
    task = task_of(cluster_of([FAST, FAST, FAST]), activation_bytes=0.0)
    one, two = pipeline([4], [0], 5), pipeline([3, 4], [1, 2], 3)
    forward, backward = FLOP / RATE, 2 * FLOP / RATE
    assert task.computing_s([one, two])[0] == pytest.approx(5 * 4 * (forward + backward))
    # The stage of three layers never waits: its second forward pass is in the time of the other stage's first passes.
    assert task.computing_s([one, two])[1] == pytest.approx(3 * 3 * (forward + backward))
    # The last layer's sum waits for the pipeline of one stage; the other one's first stage has its last pass then.
    after = 5 * 4 * (forward + backward) + PARAMETER / BETWEEN + 3 * backward + 3 * PARAMETER / BETWEEN
    assert task.synchronous_s([one, two]) == pytest.approx(after)


def summed_by_simulation(task, pipelines):
    """The synchronous step by simulating each pipeline as a whole again and again, until no stage waits otherwise: each
    stage's last backward pass takes longer by as much as it waits for others and sums up.
    """
    sums = exchanges(pipelines)
    took = [task._summed_s(one, 1, one.abreast(sums)) for one in sums]
    times = [
        [dataclasses.replace(stage, per_step_s=stage.per_step_s - stage.synchronisation_s, synchronisation_s=0.0)
         for stage in task.stage_times(one.stages, one.micro_batch)]
        for one in pipelines
    ]  # fmt: skip
    while True:
        lines = [simulate(stages, one.num_micro_batches) for stages, one in zip(times, pipelines, strict=True)]
        ready = [line.backward_s[:, -1, 1] - [s.synchronisation_s for s in line.stages] for line in lines]
        done = [each.copy() for each in ready]
        for one, seconds in zip(sums, took, strict=True):
            end = max(done[n][stage] for n, stage in enumerate(one.holders)) + seconds
            for n, stage in enumerate(one.holders):
                done[n][stage] = end
        longer = [
            [dataclasses.replace(stage, synchronisation_s=s, per_step_s=stage.per_step_s - stage.synchronisation_s + s)
             for stage, s in zip(stages, (done[n] - ready[n]).tolist(), strict=True)]
            for n, stages in enumerate(times)
        ]  # fmt: skip
        if np.allclose([s.synchronisation_s for each in longer for s in each],
                       [s.synchronisation_s for each in times for s in each], rtol=1e-12, atol=1e-15):  # fmt: skip
            return max(line.step_s for line in lines)
        times = longer


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_step_is_that_of_simulations_that_wait_for_each_other(data):
    task = task_of(
        cluster_of([device(str(n), rate * RATE) for n, rate in enumerate([1.0, 0.5, 0.7, 1.3, 0.9, 2.0])]),
        layers=5,
        parameter_bytes=data.draw(st.sampled_from([1.0, 1e6, 3e7])),
        activation_bytes=data.draw(st.sampled_from([0.0, 1e5, 1e7])),
    )
    hosts, made = iter(range(6)), []
    for _ in range(data.draw(st.integers(2, 3))):
        ends = [*sorted(data.draw(st.sets(st.integers(1, 4), max_size=1))), 5]
        made.append(pipeline(ends, [next(hosts) for _ in ends], data.draw(st.integers(1, 6))))
    assert task.synchronous_s(made) == pytest.approx(summed_by_simulation(task, made), rel=1e-9)


@pytest.mark.parametrize("per_host", [1, 2])
@pytest.mark.parametrize("tensor_parallel", [False, True])
@pytest.mark.parametrize("number", [2, 3])
def test_pipelines_alike_are_as_fast_as_one_of_data_parallel_stages(per_host, tensor_parallel, number):
    task = task_of(cluster_of([FAST] * 2 * number, per_host), batch=8 * number)
    config = config_of(1, per_host) if tensor_parallel else config_of(per_host, 1)
    alike = [pipeline([1, 4], [2 * n, 2 * n + 1], 4, 2, config) for n in range(number)]
    one = as_one(alike)
    assert cut_alike(alike)
    assert one.samples == sum(each.samples for each in alike)
    assert task.synchronous_s(alike) == pytest.approx(task.step_s(one), rel=1e-9)


def test_devices_that_share_cores_have_one_pipeline():
    cluster = dataclasses.replace(cluster_of([FAST, FAST]), cores=2)
    task = task_of(cluster)
    with pytest.raises(ValueError, match="there are 2, but must be one where devices share the cores"):
        task.synchronous_s([pipeline([4], [0], 8), pipeline([4], [1], 8)])
    assert groupings(cluster, 10) == []


def all_shares(number, count):
    for ends in itertools.combinations(range(1, count), number - 1):
        yield [b - a for a, b in itertools.pairwise((0, *ends, count))]


@settings(max_examples=40, deadline=None)
@given(
    speeds=st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), min_size=2, max_size=4),
    count=st.integers(4, 9),
    parameter_bytes=st.sampled_from([1.0, 1e6, 1e8]),
    cut=st.integers(1, 4),
)
def test_shares_are_the_best_of_all(speeds, count, parameter_bytes, cut):
    devices = [device(str(n), speed * RATE) for n, speed in enumerate(speeds)]
    task = task_of(cluster_of(devices, 2), parameter_bytes=parameter_bytes)
    ends = [cut, 4] if cut < 4 else [4]
    cuts = [pipeline([4], [0], 1), *(pipeline(ends, [n] * len(ends), 1) for n in range(1, len(speeds)))]
    found = shared(task, cuts, count)
    assert sum(one.num_micro_batches for one in found) == count
    best = min(
        task.synchronous_s([dataclasses.replace(one, num_micro_batches=n) for one, n in zip(cuts, shares, strict=True)])
        for shares in all_shares(len(cuts), count)
    )
    assert task.synchronous_s(found) == pytest.approx(best, rel=1e-9)


def partitions(hosts):
    """Every way to divide hosts into groups, by putting one after the other."""
    if not hosts:
        yield []
        return
    for groups in partitions(hosts[1:]):
        yield [[hosts[0]], *groups]
        for n, group in enumerate(groups):
            yield [*groups[:n], [hosts[0], *group], *groups[n + 1 :]]


def all_cuts(layers, hosts):
    """Every cut into stages of single devices, with the hosts in every order."""
    for number in range(1, min(layers, len(hosts)) + 1):
        for ends in itertools.combinations(range(1, layers), number - 1):
            for order in itertools.permutations(hosts, number):
                yield (*ends, layers), order


def everything(task, layers, hosts):
    """The least synchronous step of all groupings, orders of hosts, cuts, shares and sizes of micro-batch."""
    least = float("inf")
    for groups in partitions(hosts):
        options = [list(all_cuts(layers, group)) for group in groups]
        for size in (1, 2, 4, 8):
            count = task.batch // size
            for cuts in itertools.product(*options):
                for shares in all_shares(len(groups), count):
                    made = [pipeline(*cut, n, size) for cut, n in zip(cuts, shares, strict=True)]
                    least = min(least, task.synchronous_s(made))
    return least


CASES = [
    ([1.0, 0.5], 1e6, 1e4),
    ([1.0, 0.5], 1e8, 1e4),
    ([1.0, 0.5], 1e6, 1e8),
    ([1.0, 1.0, 0.5], 1e6, 1e6),
    ([1.0, 0.5, 0.25], 1e5, 1e7),
    ([1.0, 1.0, 0.25], 1e7, 1e3),
]


@pytest.mark.parametrize(("speeds", "parameter_bytes", "activation_bytes"), CASES)
def test_nothing_of_all_pipelines_is_faster(speeds, parameter_bytes, activation_bytes):
    cluster = cluster_of([device(str(speed), speed * RATE) for speed in speeds])
    task = task_of(cluster, 3, 8, parameter_bytes, activation_bytes)
    made = OURS.plan(task.model, cluster, 8)
    assert made.step_s == pytest.approx(task.synchronous_s(made.pipelines), rel=1e-9)
    best = everything(task, 3, list(range(len(speeds))))
    assert made.step_s <= best * (1 + 1e-9)


def test_every_grouping_of_few_hosts_is_among_them():
    cluster = cluster_of([FAST, SLOW, FAST, SLOW, FAST])
    kinds = [cluster.hosts[host].device.name for host in range(5)]
    every = {
        tuple(sorted(tuple(sorted(kinds[host] for host in group)) for group in groups))
        for groups in partitions(list(range(5)))
        if len(groups) > 1
    }
    found = groupings(cluster, 1000)
    placed = [hosts_of(cluster, way) for way in found]
    assert {
        tuple(sorted(tuple(sorted(kinds[host] for host in group)) for group in groups)) for groups in placed
    } == every
    assert len(found) == len(every)
    for groups in placed:
        assert sorted(itertools.chain.from_iterable(groups)) == list(range(5))


@settings(max_examples=12, deadline=None)
@given(
    speeds=st.lists(st.sampled_from([0.25, 1.0]), min_size=2, max_size=3),
    parameter_bytes=st.sampled_from([1e3, 1e6, 1e8]),
    activation_bytes=st.sampled_from([1e3, 1e6, 1e8]),
    per_host=st.integers(1, 2),
    micro_batches=st.sampled_from([None, 4]),
)
def test_never_worse_than_one_pipeline(speeds, parameter_bytes, activation_bytes, per_host, micro_batches):
    cluster = cluster_of([device(str(speed), speed * RATE, 1e12) for speed in speeds], per_host)
    model = task_of(cluster, 4, 8, parameter_bytes, activation_bytes).model
    ours, alone = (one.plan(model, cluster, 8, micro_batches=micro_batches) for one in (OURS, Dejavu(("none",), (0,))))
    assert ours.step_s <= alone.step_s * (1 + 1e-9)
    assert ours.fits
    assert sum(one.samples for one in ours.pipelines) == 8
    assert all(one.stages[-1].last == 3 for one in ours.pipelines)
    taken = [host for one in ours.pipelines for stage in one.stages for host in stage.hosts]
    assert max(map(taken.count, taken)) <= per_host
    if micro_batches is not None:
        assert sum(one.num_micro_batches for one in ours.pipelines) in (4, 4 * len(ours.pipelines))


WIDE = cluster_of([FAST, FAST, SLOW])
"""Between these hosts activations of 1e8 bytes take far too long, and gradients of 1e6 not."""


def unlike():
    model = task_of(WIDE, 4, 40, 1e6, 1e8).model
    return model, OURS.plan(model, WIDE, 40)


def test_unlike_hosts_have_unlike_shares():
    _, made = unlike()
    assert [(one.stages[0].hosts, one.samples) for one in made.pipelines] == [((0, 1), 32), ((2,), 8)]
    assert not made.runs_on_alpa
    assert "these 2 pipelines train data-parallel" in made.notes[0]
    assert made.step_s > max(made.computing_s)


def test_pipelines_alike_are_written_as_one_that_alpa_runs():
    cluster = cluster_of([FAST] * 6)
    task = task_of(cluster, batch=24)
    alike = tuple(pipeline([2, 4], [2 * n, 2 * n + 1], 8) for n in range(3))
    (one,) = _as_one(task, alike)
    assert [stage.hosts for stage in one.stages] == [(0, 2, 4), (1, 3, 5)]
    assert all(stage.is_submesh for stage in one.stages)
    assert (one.micro_batch, one.num_micro_batches) == (3, 8)
    unequal = (*alike[:2], dataclasses.replace(alike[2], num_micro_batches=9))
    assert _as_one(task, unequal) == unequal


def test_the_planner_hands_over_unlike_pipelines():
    model, made = unlike()
    with pytest.raises(UnlikePipelinesError, match="take 'dejavu', the best single pipeline") as caught:
        plan_model(model, WIDE, batch=40, micro_batches=40, strategy=OURS)
    assert caught.value.plan.step_s >= made.step_s
    assert len(caught.value.plan.pipelines) == 3


def test_without_a_host_unlike_pipelines_are_no_contingency():
    model, _ = unlike()
    alone = plan_model(model, WIDE, batch=40, micro_batches=40, strategy=Dejavu(("none",), (0,)))
    prices = Prices(WIDE, CostModels(AnalyticLatency(), AlphaBeta()))
    task = PlanningTask(GivenModel(model, 1), prices, 40, (4,), (40,), ByStrategy(OURS))
    found = given_candidate(task, model, Run(40), given_stages(alone.plan))
    assert task.chooser.again(task, [found], Clock()) == []


def test_two_unlike_pipelines_of_a_stage_each_by_hand():
    task = task_of(cluster_of([FAST, SLOW]))
    both = [pipeline([4], [0], 10), pipeline([4], [1], 6)]
    a_layer = 3 * FLOP / RATE
    assert task.computing_s(both) == pytest.approx((10 * 4 * a_layer, 6 * 4 * 2 * a_layer))
    exchanged = 4 * PARAMETER / BETWEEN  # a ring of two: half of the bytes in each of two rounds
    assert task.synchronous_s(both) == pytest.approx(6 * 4 * 2 * a_layer + exchanged)


def test_sums_of_other_stages_over_the_same_links_share_them():
    task = task_of(cluster_of([FAST, FAST], per_host=2), activation_bytes=0.0)
    both = [pipeline([2, 4], [host, host], 4) for host in (0, 1)]
    computing, alone = max(task.computing_s(both)), 2 * PARAMETER / BETWEEN
    assert task.synchronous_s(both) == pytest.approx(computing + 2 * alone + 2 * alone)


def test_one_pipeline_takes_its_own_step():
    task = task_of(cluster_of([FAST, SLOW], 2))
    stages = (PlacedStage(0, 2, (0, 0), config_of(2, 1)), PlacedStage(3, 3, (1,), ALONE))
    one = Pipeline(stages, 2, 4)
    assert task.synchronous_s([one]) == task.step_s(one)
    (ready,) = task.computing_s([one])
    assert ready < task.step_s(one)


def test_groupings_are_bounded_and_begin_with_kinds_and_hosts_apart():
    many = cluster_of([FAST] * 40 + [SLOW] * 24)
    found = groupings(many, 100)
    assert found == groupings(many, 100)
    assert len(found) == 100
    assert found[:2] == [((40, 0), (0, 24)), ((1, 0),) * 40 + ((0, 1),) * 24]
    assert len({part for way in found for part in way}) <= 16


def test_unlike_pipelines_are_no_plan_of_stages():
    model, made = unlike()
    with pytest.raises(UnlikePipelinesError, match="strategy is 'pipelines', whose 2 pipelines are unlike") as caught:
        as_planned(made, model, WIDE)
    assert (caught.value.plan, caught.value.cluster) == (made, WIDE)


def test_layers_move_where_that_is_faster():
    task = task_of(cluster_of([FAST, SLOW, SLOW]), 6)
    bad = (pipeline([1, 6], [0, 1], 8), pipeline([6], [2], 8))
    moved = with_layers_moved(task, bad)
    assert [stage.last for stage in moved[0].stages] == [3, 5]
    assert moved[0].num_micro_batches > moved[1].num_micro_batches
    assert task.synchronous_s(moved) < task.synchronous_s(bad)


def test_a_single_pipeline_is_a_plan_as_any_other():
    heavy = task_of(WIDE, 4, 4, 1e8, 1.0).model
    planned = plan_model(heavy, WIDE, batch=4, micro_batches=4, strategy=OURS).plan
    assert planned.strategy == "pipelines"
    assert planned.runs_on_alpa
