"""Others' strategies: what they choose, what it costs by the common truth, and what they can't do."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.costs.communication import AlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.costs.memory_margin import MemoryMargin
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.planning import GivenStage, estimate
from alpa_dejavu.planning.rivals import AlpaDefault, Amp, Dejavu, HetPipe, Megatron, StrategyTask
from alpa_dejavu.planning.rivals._amp import AmpCosts, Degrees
from alpa_dejavu.planning.rivals._hetpipe import virtual_workers
from alpa_dejavu.planning.rivals._orders import host_orders, orders_of
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, config_of
from alpa_dejavu.problem import Cluster, Device, Host, Link, MeshConfig, NoPlanError, Run, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain

WITHIN, BETWEEN = Link(0.0, 1e10), Link(0.0, 1e9)


def device(name="fast", flop_per_s=1e12, memory_bytes=2.0**30):
    return Device(name, memory_bytes, {"float32": flop_per_s}, 1e12, 1e11)


def cluster_of(devices, per_host=4, within=WITHIN, between=BETWEEN):
    hosts = tuple(Host(f"host-{n}", one, per_host) for n, one in enumerate(devices))
    links = tuple(tuple(within if a == b else between for b in range(len(hosts))) for a in range(len(hosts)))
    return Cluster("made up", hosts, links)


FAST, SLOW = device(), device("slow", 0.5e12)
MIXED = cluster_of([FAST, FAST, FAST, SLOW])
ALPA, OURS = AlpaDefault(("none",), (0,)), Dejavu(("none",), (0,))
MODEL = chain(6, flop=1e9, parameter_bytes=1e5, activation_bytes=1e4, exchanged=(1e4,))


def task_of(model, cluster, batch=16):
    return StrategyTask(model, 1, cluster, batch, CostModels(AnalyticLatency(), AlphaBeta()))


@pytest.mark.parametrize(
    ("cluster", "submesh", "shape"),
    [
        (example_cluster(4, 4), Submesh(2, 4), (8, 1)),
        (example_cluster(4, 4), Submesh(2, 4), (2, 4)),
        (example_cluster(1, 4), Submesh(1, 2), (2, 1)),
        (example_cluster(1, 4), Submesh(1, 2), (1, 2)),
    ],
)
@pytest.mark.parametrize(("remat", "zero"), [("none", 0), ("layer", 2), ("layer", 3)])
def test_on_alike_hosts_the_truth_is_what_the_planner_estimates(cluster, submesh, shape, remat, zero):
    model = chain(4, flop=1e9, parameter_bytes=1e6, activation_bytes=1e6, exchanged=(1e5, 3e5))
    config = MeshConfig(shape, *shape, remat=remat, zero=zero)
    half = submesh.num_devices
    hosts = [host for host in range(len(cluster.hosts)) for _ in range(4)]
    cuts = [(0, 0), (1, 3)]
    stages = tuple(PlacedStage(*cut, tuple(hosts[n * half : (n + 1) * half]), config) for n, cut in enumerate(cuts))
    ours = task_of(model, cluster, 32).step_s(Pipeline(stages, 8, 4))
    given_stages = [GivenStage(*cut, submesh, config) for cut in cuts]
    theirs = estimate(with_micro_batch(model, 8), cluster, Run(4), given_stages).plan.step_s
    assert ours == pytest.approx(theirs, rel=1e-9)


def test_a_stage_on_unlike_devices_is_as_slow_and_small_as_its_worst():
    small = device("small", 1e12, 100.0)
    cluster = cluster_of([FAST, SLOW, small], per_host=1)
    task = task_of(MODEL, cluster)
    both, slow, tight = (
        task.stage_times([PlacedStage(0, 5, hosts, config_of(len(hosts), 1))], 2)[0]
        for hosts in ((0, 1), (1, 1), (0, 2))
    )
    assert both.forward_s == slow.forward_s
    assert both.synchronisation_s > slow.synchronisation_s
    assert tight.memory_limit_bytes == 100.0
    assert not task_of(MODEL, cluster).fits(Pipeline((PlacedStage(0, 5, (0, 2), config_of(2, 1)),), 2, 8))


def test_the_papers_placement_puts_hosts_in_the_best_order():
    model = chain(6, flop=1e9, parameter_bytes=1.0, activation_bytes=1e4, exchanged=())
    slow_first = cluster_of([SLOW, FAST, FAST, FAST])
    assert host_orders(slow_first, range(4), 24) == [(0, 1, 2, 3), (1, 0, 2, 3), (1, 2, 0, 3), (1, 2, 3, 0)]
    everywhere = {len(Amp(variant).estimates(task_of(model, slow_first))) for variant in ("paper", "released")}
    assert max(everywhere) == 4 * min(everywhere)
    least = [Amp("paper").estimates(task_of(model, one))[0][0] for one in (slow_first, MIXED)]
    assert least[0] == pytest.approx(least[1])


def test_amp_takes_what_has_the_memory():
    model = chain(6, flop=1e11, parameter_bytes=1e5, activation_bytes=1e4, exchanged=(1e8,))
    roomy, tight = cluster_of([FAST] * 4), cluster_of([device(memory_bytes=0.6 * 4 * 6 * 1e5)] * 4)
    whole, cut = (Amp().plan(model, cluster, 16) for cluster in (roomy, tight))
    assert whole.pipelines[0].stages[0].hosts == (0,) * 4 + (1,) * 4 + (2,) * 4 + (3,) * 4
    assert not task_of(model, tight).fits(whole.pipelines[0])
    assert cut.fits
    assert cut.own_s > whole.own_s


PAPERS = [device(name, rate * 1e12) for name, rate in (("V", 4), ("R", 3), ("G", 2), ("Q", 1))]


def test_allocations_are_the_papers_on_its_cluster():
    cluster = cluster_of(PAPERS)
    named = {
        allocation: ["".join(cluster.hosts[host].device.name for host in worker) for worker in workers]
        for allocation in ("np", "ed", "hd")
        for workers in [virtual_workers(cluster, allocation)]
    }
    assert named == {
        "np": ["VVVV", "RRRR", "GGGG", "QQQQ"],
        "ed": ["VRGQ"] * 4,
        "hd": ["VVQQ", "VVQQ", "RRGG", "RRGG"],
    }


def test_a_virtual_worker_is_cut_so_that_its_slowest_stage_is_fastest():
    cluster = cluster_of(PAPERS, between=WITHIN)
    model = chain(10, flop=1e9, parameter_bytes=1.0, activation_bytes=1.0, exchanged=())
    made = HetPipe("ed").plan(model, cluster, 16)
    rates = (4, 3, 2, 1)
    cuts = itertools.combinations(range(1, 10), 3)
    best = min(
        max((end - start) / rate for start, end, rate in zip((0, *cut), (*cut, 10), order, strict=True))
        for cut in cuts
        for order in itertools.permutations(rates)
    )
    assert made.own_s == pytest.approx(4 * best * 3e9 / 1e12, rel=1e-6)
    (stages,) = {tuple((s.last - s.first + 1, s.hosts) for s in one.stages) for one in made.pipelines}
    assert sorted(count for count, _ in stages) == [1, 2, 3, 4]


def test_hetpipe_is_an_estimate_that_alpa_cant_run():
    made = HetPipe("np").plan(MODEL, MIXED, 16)
    assert not made.runs_on_alpa
    assert "Alpa's runtime has neither" in made.notes[0]
    assert len(made.pipelines) == 4
    stale = HetPipe("np", staleness=4).plan(MODEL, MIXED, 16)
    assert stale.step_s < made.step_s


def test_virtual_workers_share_the_links_that_they_send_over():
    model = chain(4, flop=1.0, parameter_bytes=1e-3, activation_bytes=1e6, exchanged=())
    cluster = cluster_of([FAST, FAST], per_host=2)
    task = task_of(model, cluster)
    stages = (PlacedStage(0, 1, (0,), config_of(1, 1)), PlacedStage(2, 3, (1,), config_of(1, 1)))
    one = Pipeline(stages, 2, 4)
    alone, both = task.steady_s([one], 0), task.steady_s([one, one], 0)
    assert both == pytest.approx(2 * alone, rel=1e-3)


def test_equal_distribution_shares_parameters_within_hosts():
    model = chain(6, flop=1e6, parameter_bytes=1e8, activation_bytes=1.0, exchanged=())
    cluster = cluster_of([device(memory_bytes=1e12)] * 4)
    np_, ed = (HetPipe(allocation).plan(model, cluster, 16).step_s for allocation in ("np", "ed"))
    assert ed < np_ / 5


def test_megatrons_expert_uses_no_more_model_parallelism_than_memory_asks_for():
    free = Megatron().plan(MODEL, MIXED, 16).pipelines[0]
    assert [(s.config.data_parallel, s.config.tensor_parallel) for s in free.stages] == [(16, 1)]
    halves = cluster_of([device(memory_bytes=0.6 * 4 * 6 * 1e5)] * 4)
    split = Megatron().plan(MODEL, halves, 16).pipelines[0]
    assert [(s.config.data_parallel, s.config.tensor_parallel) for s in split.stages] == [(8, 2)]
    tenths = cluster_of([device(memory_bytes=0.2 * 4 * 6 * 1e5)] * 4)
    piped = Megatron().plan(MODEL, tenths, 16).pipelines[0]
    assert {s.config.tensor_parallel for s in piped.stages} == {4}
    assert [(s.first, s.last) for s in piped.stages] == [(0, 2), (3, 5)]
    assert Megatron("all").plan(MODEL, MIXED, 16).step_s <= Megatron().plan(MODEL, MIXED, 16).step_s


def test_alpa_plans_for_alike_hosts_and_pays_for_what_is_there():
    alike = cluster_of([FAST] * 4)
    model = chain(4, flop=1e9, parameter_bytes=1e5, activation_bytes=1e4, exchanged=())
    told, paid = (ALPA.plan(model, cluster, 4) for cluster in (alike, MIXED))
    assert told.pipelines == paid.pipelines
    assert told.own_s == paid.own_s
    assert paid.step_s > told.step_s
    ours = OURS.plan(model, alike, 4)
    assert ours.step_s <= told.step_s * (1 + 1e-9)


OTHERS = [Amp(), Amp("released"), HetPipe("np"), HetPipe("ed"), HetPipe("hd"), Megatron(), Megatron("all"), ALPA]


@settings(max_examples=25, deadline=None)
@given(
    which=st.sampled_from([*OTHERS, OURS]),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=2),
    layers=st.integers(2, 6),
    batch=st.sampled_from([4, 8]),
)
def test_all_plans_cover_the_layers_and_the_batch(which, speeds, layers, batch):
    cluster = cluster_of([device(str(speed), speed * 1e12) for speed in speeds], per_host=2)
    model = chain(layers, flop=1e9, parameter_bytes=1e5, activation_bytes=1e4, exchanged=(1e4,))
    made = which.plan(model, cluster, batch)
    assert sum(pipeline.samples for pipeline in made.pipelines) == batch
    taken = [host for pipeline in made.pipelines for stage in pipeline.stages for host in stage.hosts]
    assert sorted(taken) == [0, 0, 1, 1] or (which == OURS and max(map(taken.count, (0, 1))) <= 2)
    for pipeline in made.pipelines:
        covered = [n for stage in pipeline.stages for n in range(stage.first, stage.last + 1)]
        assert covered == list(range(layers))
    assert 0 < made.step_s < np.inf
    assert made.fits


UNEVEN = Cluster("uneven", (Host("a", FAST, 2), Host("b", FAST, 4)), ((WITHIN, BETWEEN), (BETWEEN, WITHIN)))
ODD = cluster_of([FAST] * 3, per_host=4)


@pytest.mark.parametrize(
    ("made", "model", "cluster", "batch", "said"),
    [
        (Amp(), MODEL, UNEVEN, 12, r"\[2, 4\] devices"),
        (ALPA, MODEL, UNEVEN, 12, r"\[2, 4\] devices"),
        (HetPipe("ed"), MODEL, UNEVEN, 12, "equally many in each"),
        (HetPipe("hd"), MODEL, ODD, 12, "3 hosts of 4 devices"),
        (HetPipe("np"), MODEL, ODD, 8, "3 virtual workers can't share a batch of 8"),
        (HetPipe("np"), chain(3), ODD, 12, "4 devices, but the model 3 layers"),
        (Amp(), chain(3, training=False), ODD, 12, "training steps alone"),
        (Amp(), MODEL, ODD, 0, "batch is 0"),
    ],
)
def test_what_a_strategy_cant_do_is_named(made, model, cluster, batch, said):
    with pytest.raises(ValueError, match=said):
        made.plan(model, cluster, batch)


@pytest.mark.parametrize("made", [HetPipe("np"), Megatron(), ALPA, OURS])
def test_no_memory_is_no_plan(made):
    with pytest.raises(NoPlanError):
        made.plan(MODEL, cluster_of([device(memory_bytes=10.0)] * 4), 4)


def test_amps_estimate_without_memory_says_that_it_doesnt_fit():
    assert not Amp().plan(MODEL, cluster_of([device(memory_bytes=10.0)] * 4), 16).fits


def test_a_pipeline_must_make_sense():
    with pytest.raises(ValueError, match="2 devices for a config of 4"):
        PlacedStage(0, 0, (0, 0), config_of(4, 1))
    with pytest.raises(ValueError, match="don't follow each other"):
        Pipeline((PlacedStage(1, 2, (0,), config_of(1, 1)),), 1, 1)


@pytest.mark.parametrize(
    "bad", [lambda: Amp("draft"), lambda: HetPipe("xx"), lambda: Megatron("none"), lambda: Amp(trials=0)]
)
def test_choices_that_a_strategy_hasnt_are_named(bad):
    with pytest.raises(ValueError, match="must be"):
        bad()


def test_a_strategy_leaves_the_same_share_of_the_memory_free():
    stage = PlacedStage(0, 5, (0,), config_of(1, 1))
    pipeline = Pipeline((stage,), 2, 8)
    times = task_of(MODEL, cluster_of([FAST], per_host=1)).stage_times([stage], 2)[0]
    counted = times.resident_bytes + times.temporary_bytes + times.activation_bytes
    tight = task_of(MODEL, cluster_of([dataclasses.replace(FAST, memory_bytes=1.02 * counted)], per_host=1))
    assert not tight.fits(pipeline)
    assert dataclasses.replace(tight, margin=MemoryMargin(free_share=0.01)).fits(pipeline)
    assert not dataclasses.replace(tight, margin=MemoryMargin(free_share=0.03)).fits(pipeline)


def test_the_slowest_group_counts_wherever_it_is():
    task = task_of(MODEL, with_link(cluster_of([FAST, FAST], per_host=2), Link(0.0, 1e8), (1, 1)))
    first, both = (
        task.stage_times([PlacedStage(0, 5, hosts, config_of(len(hosts) // 2, 2))], 2)[0].forward_collective_s
        for hosts in ((0, 0), (0, 0, 1, 1))
    )
    assert both == pytest.approx(first * 100 / 2)


def test_neighbours_in_one_host_send_within_it():
    stages = [PlacedStage(n, n, (host,), config_of(1, 1)) for n, host in enumerate((0, 0, 1))]
    one, same, other = task_of(MODEL, MIXED).stage_times(stages, 1)
    assert one.forward_send_s == same.backward_send_s == pytest.approx(1e4 / 1e10)
    assert same.forward_send_s == other.backward_send_s == pytest.approx(1e4 / 1e9)


def with_link(cluster, link, *pairs):
    """The cluster with another link from one host to another."""
    links = tuple(
        tuple(link if (a, b) in pairs else other for b, other in enumerate(row)) for a, row in enumerate(cluster.links)
    )
    return dataclasses.replace(cluster, links=links)


def costs_of(variant, degrees, cluster=MIXED, model=MODEL):
    ranks = tuple(n for n, host in enumerate(cluster.hosts) for _ in range(host.num_devices))
    return AmpCosts(task_of(model, cluster), degrees, ranks, variant)


def test_released_amp_averages_unlike_devices():
    free = Link(0.0, 1e30)
    cluster = cluster_of([FAST, FAST, FAST, SLOW], within=free, between=free)
    whole, replicas = 3e9 * 6 / 1e12, Degrees(16, 1, 1, 1, 1)
    assert costs_of("released", replicas, cluster).step_s((0,)) == pytest.approx(whole * (0.75 + 0.25 * 2))
    assert costs_of("paper", replicas, cluster).step_s((0,)) == pytest.approx(whole * 2)


def test_released_amp_cuts_as_if_all_devices_were_alike():
    by_host = Degrees(4, 1, 4, 1, 100)
    assert costs_of("released", by_host).starts() != costs_of("paper", by_host).starts()
    (*_, last) = costs_of("paper", by_host).starts()
    assert last == 5


def test_released_amp_looks_at_the_link_that_closes_the_ring():
    cluster = with_link(cluster_of([FAST] * 3, per_host=1), Link(0.0, 1e7), (0, 1), (1, 0))
    compute, gradients, ring = 3e9 * 6 / 1e12, 2 * 2 / 3 * 6 * 1e5, Degrees(3, 1, 1, 1, 1)
    assert costs_of("released", ring, cluster).step_s((0,)) == pytest.approx(compute + gradients / 1e9)
    assert costs_of("paper", ring, cluster).step_s((0,)) == pytest.approx(compute + gradients / 1e7)


def test_released_amp_averages_the_boundaries_of_replicas():
    cluster = with_link(cluster_of([FAST] * 4, per_host=1), Link(0.0, 1e5), (0, 2))
    released, paper = (
        costs_of(variant, Degrees(2, 1, 2, 1, 1), cluster).step_s((0, 3)) for variant in ("released", "paper")
    )
    assert paper - released == pytest.approx(1e4 / 1e5 - (1e4 / 1e5 + 1e4 / 1e9) / 2)


def test_many_orders_are_drawn_the_same_each_time():
    drawn = orders_of(tuple(range(8)), 10)
    assert drawn == orders_of(tuple(range(8)), 10)
    assert drawn[0] == tuple(range(8))
    assert len(set(drawn)) == 10


def test_amp_tries_its_best_candidates_and_takes_the_fastest():
    one, many = (Amp(trials=trials).plan(MODEL, MIXED, 16) for trials in (1, 20))
    assert many.step_s <= one.step_s
    assert many.own_s >= one.own_s


def test_alpa_runs_submeshes_alone():
    for hosts, runs in (((0, 0, 1), False), ((0, 1), True), ((0, 0), True), ((0, 0, 0, 1, 1, 1), True)):
        assert PlacedStage(0, 5, hosts, config_of(len(hosts), 1)).is_submesh == runs
