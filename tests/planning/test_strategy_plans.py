"""Others' strategies in the place of the search: plans like any other, or why there is none."""

import dataclasses

import pytest

import unlike
from alpa_dejavu.calibration.history import Origin, PastRun, Store
from alpa_dejavu.clusters.changed_cluster import without
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.exports.alpa_code import alpa_code
from alpa_dejavu.planning import plan, plan_model
from alpa_dejavu.planning.result import STRATEGIES
from alpa_dejavu.planning.rivals import (
    AlpaDefault,
    Amp,
    ByStrategy,
    Dejavu,
    HetPipe,
    Megatron,
    Strategy,
    UnlikePipelinesError,
    as_planned,
    strategy,
)
from alpa_dejavu.planning.rivals.stages import Pipeline, PlacedStage, config_of
from alpa_dejavu.planning.search.uncertainty import confidence
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.problem import NoPlanError, Run, Submesh
from alpa_dejavu.simulation.step import simulate
from alpa_dejavu.testing import example_cluster
from jax_models import trained
from models import chain, task_of

MODEL = chain(6, flop=1e9, parameter_bytes=1e5, activation_bytes=1e4, exchanged=(1e4,))
HOSTS = example_cluster(4, 2)
OURS = Dejavu(("none",), (0,))
ALL = [Amp(), Amp("released"), Megatron(), AlpaDefault(("none",), (0,)), OURS, HetPipe("ed")]


def made_by(chosen, cluster=HOSTS, model=MODEL, batch=16, **more):
    return chosen.plan(model, cluster, batch, **more)


@pytest.mark.parametrize("cluster", [HOSTS, unlike.islands()], ids=["uniform", "islands"])
@pytest.mark.parametrize("chosen", ALL, ids=lambda one: one.name)
def test_a_strategys_plan_is_a_plan(chosen, cluster):
    made = made_by(chosen, cluster, micro_batches=8)
    plan = as_planned(made, MODEL, cluster, name="tiny").plan
    assert plan.strategy == chosen.name == made.strategy
    assert [layer for ids in plan.layer_ids for layer in ids] == list(range(6))
    assert plan.batch == 16
    assert plan.num_micro_batches == made.pipelines[0].num_micro_batches
    named = [[cluster.hosts[n].name for n in dict.fromkeys(stage.hosts)] for stage in made.pipelines[0].stages]
    assert [list(stage.hosts) for stage in plan.stages] == named
    assert plan.notes[0].startswith(f"chosen by {chosen.name}, which compared {made.tried} plans")
    assert plan.runs_on_alpa == (not isinstance(chosen, HetPipe))
    # Where neighbours are in one host, equal hosts are costed as if they weren't.
    assert plan.step_s == pytest.approx(made.step_s, rel=0.05)


def test_alike_virtual_workers_are_one_pipeline_that_is_estimated_only(tmp_path):
    made = made_by(HetPipe("ed"))
    planned = as_planned(made, MODEL, HOSTS)
    plan = planned.plan
    assert len(made.pipelines) == 2
    assert [stage.logical_mesh for stage in plan.stages] == [(2, 1)] * 4
    assert plan.step_s == planned.timeline.step_s == made.step_s
    assert made.step_s != simulate(planned.timeline.stages, plan.num_micro_batches).step_s, "with synchronous steps"
    assert "Alpa's runtime has neither" in plan.notes[1]
    again = read_plan(write_plan(plan, tmp_path / "plan.json"))
    assert (again.strategy, again.runs_on_alpa) == ("hetpipe (ed)", False)
    with pytest.raises(ValueError, match=r"hetpipe \(ed\) is estimated only, and Alpa can't run it"):
        alpa_code(again)


def test_virtual_workers_that_are_cut_in_unlike_ways_are_no_plan():
    uneven = unlike.cluster([unlike.host("a", devices=2), unlike.host("b", devices=4)])
    with pytest.raises(UnlikePipelinesError, match="whose 2 pipelines are unlike"):
        as_planned(made_by(HetPipe("np"), uneven), MODEL, uneven)


def test_a_stage_on_unequal_shares_of_hosts_is_no_mesh():
    stages = (PlacedStage(0, 2, (0, 0, 1), config_of(3, 1)), PlacedStage(3, 5, (1,), config_of(1, 1)))
    made = dataclasses.replace(made_by(Megatron()), pipelines=(Pipeline(stages, 2, 8),))
    with pytest.raises(ValueError, match=r"its stage 0 is on {'host-0': 2, 'host-1': 1} devices"):
        as_planned(made, MODEL, HOSTS)


@pytest.mark.parametrize("chosen", ALL, ids=lambda one: one.name)
def test_a_number_of_micro_batches_is_taken_as_given(chosen):
    assert {one.num_micro_batches for one in made_by(chosen, micro_batches=4).pipelines} == {4}
    with pytest.raises(ValueError, match="3 micro-batches don't divide a batch of 16"):
        made_by(chosen, micro_batches=3)


def planned_by(chosen, cluster=HOSTS, count=8):
    """What a strategy plans for a batch of 16 samples in so many micro-batches, with all that is said of plans."""
    return plan(task_of(MODEL, cluster, 16 // count, Run(count), chooser=ByStrategy(chosen), contingencies=True))


@pytest.mark.parametrize("cluster", [HOSTS, unlike.two_and_two()], ids=["uniform", "unlike"])
@pytest.mark.parametrize("chosen", [Amp(), Megatron(), HetPipe("ed"), OURS], ids=lambda one: one.name)
def test_without_a_host_the_same_strategy_plans_for_what_is_left(chosen, cluster):
    made = planned_by(chosen, cluster).plan
    names = [host.name for host in cluster.hosts]
    assert list(made.contingencies) == names
    for lost, other in made.contingencies.items():
        used = {host for stage in other.stages for host in stage.hosts}
        assert used | set(other.unused) == {*names} - {lost}
        assert not used & set(other.unused)
        assert [layer for stage in other.stages for layer in range(stage.layers[0], stage.layers[1] + 1)] == [*range(6)]
    steps = [step_or_none(chosen, without(cluster, lost)) for lost in (names[:1], [names[0], names[-1]])]
    assert made.contingencies[names[0]].step_s == pytest.approx(next(filter(None, steps)))


def step_or_none(chosen, cluster):
    try:
        return planned_by(chosen, cluster).plan.step_s
    except (NoPlanError, ValueError):
        return None


@pytest.mark.parametrize("cluster", [HOSTS, unlike.two_and_two()], ids=["uniform", "unlike"])
@pytest.mark.parametrize("chosen", [Amp(), Megatron(), HetPipe("ed")], ids=lambda one: one.name)
def test_how_sure_a_strategys_step_is_is_told(chosen, cluster):
    made = planned_by(chosen, cluster).plan
    sure = made.confidence
    assert sure.interval_s[0] < made.step_s < sure.interval_s[1]
    assert (sure.probability, sure.candidates) == (1.0, 1)


def test_virtual_workers_whose_shares_cant_be_cut_so_are_named():
    with pytest.raises(ValueError, match="each of 2 virtual workers has 8 samples, which can't be cut in 16 micro-b"):
        made_by(HetPipe("ed"), micro_batches=16)


def test_a_model_is_planned_by_another_strategy_and_corrected_as_ours(tmp_path):
    asked = {"batch": 32, "layers": 4, "strategy": Amp(trials=2), "contingencies": True}
    planned = plan_model(trained, HOSTS, **asked)
    plan = planned.plan
    assert plan.strategy == "amp (paper)"
    assert plan.notes[0].startswith("chosen by amp (paper), which compared")
    assert list(plan.planning_s)[-6:] == ["strategy", "placement", "confidence", "contingencies", "memory", "cache"]
    assert plan.confidence.candidates == 1
    assert list(plan.contingencies) == [host.name for host in HOSTS.hosts]
    assert planned.timeline.step_s == plan.step_s
    store = Store(tmp_path / "history.sqlite")
    origin = Origin.of(planned.model, HOSTS, AnalyticLatency(), "alpha-beta")
    for _ in range(5):
        store.append(PastRun(plan, origin, plan.step_s, (2 * plan.step_s,)))
    again = plan_model(trained, HOSTS, history=store.path, **asked)
    assert again.plan.correction.runs == 5
    assert again.plan.step_s == pytest.approx(again.timeline.step_s) == pytest.approx(2 * plan.step_s, rel=0.2)
    factor = again.plan.correction.factor
    assert again.plan.confidence.interval_s[1] == pytest.approx(factor * plan.confidence.interval_s[1])
    assert again.plan.contingencies["host-1"].step_s == pytest.approx(factor * plan.contingencies["host-1"].step_s)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"objective": "pareto"}, "objective is 'pareto', but amp .* has rules of its own"),
        ({"schedule": "gpipe"}, "schedule is 'gpipe'"),
        ({"remat": ("none",)}, r"remat is \('none',\)"),
        ({"slicing": "uniform"}, "slicing is 'uniform'"),
        ({"strategy": "gshard"}, "there is no strategy named 'gshard'"),
    ],
)
def test_what_a_strategy_has_no_choice_of_is_named_before_anything_is_traced(asked, said):
    priced = tuple(dataclasses.replace(each, price_per_hour=1.0) for each in HOSTS.hosts)
    with pytest.raises(ValueError, match=said):
        plan_model(None, dataclasses.replace(HOSTS, hosts=priced), **{"batch": 32, "strategy": "amp"} | asked)


def test_what_doesnt_fit_is_no_plan():
    tight = example_cluster(4, 2, memory_bytes=10.0)
    with pytest.raises(NoPlanError, match=r"amp \(paper\) has no plan that fits: .* stage 0 needs"):
        as_planned(made_by(Amp(), tight), MODEL, tight)


def test_virtual_workers_of_a_host_each_are_stages_over_all_hosts():
    plan = as_planned(made_by(HetPipe("np")), MODEL, HOSTS).plan
    assert [(stage.submesh, stage.hosts) for stage in plan.stages] == [
        (Submesh(4, 1), ("host-0", "host-1", "host-2", "host-3"))
    ] * 2


class OnFour(Strategy):
    """Megatron's on four hosts, and nothing on fewer."""

    name = "on four"

    def _choose(self, task):
        if len(task.cluster.hosts) < 4:
            raise NoPlanError("too few hosts")
        return Megatron()._choose(task)


def test_a_host_without_which_a_strategy_has_no_plan_is_named():
    made = planned_by(OnFour()).plan
    assert made.contingencies == {}
    assert "nothing fits without any one of its hosts: there is no contingency for that loss" in made.notes


def test_an_estimate_that_is_only_the_strategys_own_counts_in_how_sure_it_is():
    task, seen = task_of(MODEL, HOSTS, 2, Run(8), chooser=ByStrategy(HetPipe("ed"))), []

    def look(plan, chosen):
        seen.extend(chosen.compared)
        return plan

    made = plan(task, annotations=[look])
    (found,) = seen
    assert found.step_s == made.plan.step_s == made_by(HetPipe("ed"), micro_batches=8, samples=2).step_s
    slower = dataclasses.replace(found, simulated_s=2 * found.step_s)
    sure, both = confidence([found]), confidence([slower, found])
    assert both.expected_step_s > 1.9 * sure.expected_step_s
    assert (both.probability, both.candidates) == (0.0, 2)


def test_the_names_are_the_strategies():
    for name in STRATEGIES:
        strategy(name)
    with pytest.raises(ValueError, match=", ".join(map(repr, STRATEGIES))):
        strategy("gshard")
