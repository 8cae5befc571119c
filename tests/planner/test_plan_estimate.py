"""Costing a plan file: the same model, cluster and stages give the same figures."""

import collections
import dataclasses

import pytest
from models import chain
from plans import example_plan, stage
from unlike import two_and_two

from alpa_dejavu import layers
from alpa_dejavu.estimate import GivenStage, estimate
from alpa_dejavu.plan_estimate import PlanEstimator, cluster_of_plan
from alpa_dejavu.problem import MeshConfig, Run, Submesh
from alpa_dejavu.testing import example_cluster

Traced = collections.namedtuple("Traced", "name")

CLUSTER, MODEL = example_cluster(1), chain(4, flop=1e9, activation_bytes=1e6, parameter_bytes=1e6)
PLAN = example_plan(cluster="example")


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Any model is the chain of 4 layers; what was traced is told."""
    asked = []

    def trace(model, *, batch):
        asked.append((model, batch))
        return Traced(name=model)

    monkeypatch.setattr(layers, "trace", trace)
    monkeypatch.setattr(layers, "model_of_step", lambda traced, num_layers: MODEL)
    monkeypatch.setattr(layers, "step_digest", lambda traced: traced.name)
    return asked


def test_it_is_the_estimate_of_the_plans_stages(traced):
    made = PlanEstimator(PLAN, cluster=CLUSTER).estimate(PLAN)
    forced = {"force_batch_dim_to_mesh_dim": 0}
    expected = estimate(
        MODEL,
        CLUSTER,
        Run(4),
        [
            GivenStage(0, 2, Submesh(1, 2), MeshConfig((2, 1), 2, 1, forced)),
            GivenStage(3, 3, Submesh(1, 2), MeshConfig((1, 2), 1, 2, forced, zero=2)),
        ],
    ).plan
    assert made.plan.step_s == expected.step_s
    assert [one.memory_bytes for one in made.plan.stages] == [one.memory_bytes for one in expected.stages]
    assert [one.hosts for one in made.plan.stages] == [("host-0",)] * 2
    assert list(made.plan.planning_s) == ["import", "trace", "features", "cost table"]
    assert (made.plan.model, made.plan.batch) == ("gpt-125m", 32)
    assert traced == [("gpt-125m", 8)]


def test_another_model_is_named():
    made = PlanEstimator(PLAN, model="bert-mine", cluster=CLUSTER).estimate(PLAN)
    assert made.plan.model == "bert-mine"


def test_the_plans_hosts_stay_where_the_cluster_has_them():
    there = tuple(dataclasses.replace(one, hosts=(f"host-{n}",)) for n, one in enumerate(PLAN.stages))
    plan = dataclasses.replace(PLAN, stages=there)
    two = dataclasses.replace(example_cluster(2, 2), name="example")
    made = PlanEstimator(plan, cluster=two).estimate(plan).plan
    assert [one.hosts for one in made.stages] == [("host-0",), ("host-1",)]


@pytest.mark.parametrize("cluster", [example_cluster(2, 2), two_and_two()], ids=["alike", "unlike"])
def test_a_host_that_the_cluster_has_not_is_named(cluster):
    names = [(cluster.hosts[0].name,), ("elsewhere",)]
    stages = tuple(dataclasses.replace(one, hosts=on) for one, on in zip(PLAN.stages, names, strict=True))
    plan = dataclasses.replace(PLAN, stages=stages)
    with pytest.raises(ValueError, match=rf"stage 1 is on the host 'elsewhere', but {cluster.name} has '"):
        PlanEstimator(plan, cluster=cluster).estimate(plan)


def test_a_model_is_traced_once_for_each_number_of_micro_batches(traced):
    estimator = PlanEstimator(PLAN, "mine:model", CLUSTER)
    for count in (4, 8, 4):
        estimator.estimate(dataclasses.replace(PLAN, num_micro_batches=count))
    assert traced == [("mine:model", 8), ("mine:model", 4)]


def test_a_mesh_that_forces_nothing_divides_the_batch_where_it_can():
    free = tuple(dataclasses.replace(one, options={}) for one in PLAN.stages)
    plan = dataclasses.replace(PLAN, stages=free)
    configs = [row[0] for row in PlanEstimator(plan, cluster=CLUSTER).estimate(plan).space.configs]
    assert [(config.data_parallel, config.tensor_parallel) for config in configs] == [(2, 1)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"batch": None}, "doesn't know its batch"), ({"model": ""}, "doesn't name its model; give --model")],
)
def test_what_a_plan_must_know_is_named(changes, said):
    with pytest.raises(ValueError, match=said):
        PlanEstimator(example_plan(**changes), cluster=CLUSTER)


def test_layers_that_there_are_not_are_refused():
    six = example_plan(stages=(stage((0, 2)), stage((3, 5))))
    with pytest.raises(ValueError, match="the plan has 6 layers, but the model can be cut into 4 only"):
        PlanEstimator(six, cluster=CLUSTER).estimate(six)


def test_the_cluster_is_the_one_that_the_plan_names():
    whole = example_plan(stages=(stage((0, 3), (2, 8), (16, 1)),), cluster="2 x p3.16xlarge")
    assert cluster_of_plan(whole).name == "2 x p3.16xlarge"
    assert cluster_of_plan(whole).num_devices == 16
    assert cluster_of_plan(whole, "p4d.24xlarge").name == "2 x p4d.24xlarge"
    # Half of a host's devices, as Alpa may be given.
    assert cluster_of_plan(PLAN, "p3.16xlarge").num_devices == 4


def test_a_cluster_that_nobody_knows_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"for the cluster 'example': there is no machine .* with --cluster"):
        cluster_of_plan(PLAN)
    odd = example_plan(stages=(stage((0, 3), (1, 2), hosts=("a",)), stage((4, 4), (1, 1), (1, 1), hosts=("b",))))
    with pytest.raises(ValueError, match="the plan is for 3 devices, but 2 x p3"):
        cluster_of_plan(dataclasses.replace(odd, cluster="2 x p3.16xlarge"))


def test_a_plan_may_leave_hosts_of_its_cluster_unused():
    names = [f"p3.16xlarge-{n}" for n in range(2)]
    part = example_plan(
        stages=tuple(stage((2 * n, 2 * n + 1), (1, 8), (8, 1), hosts=(name,)) for n, name in enumerate(names)),
        cluster="4 x p3.16xlarge",
    )
    assert cluster_of_plan(part).num_devices == 32


def test_a_file_of_a_cluster_that_has_the_plans_hosts_is_taken_as_it_is(monkeypatch):
    whole = two_and_two()
    monkeypatch.setattr("alpa_dejavu.clusters.named_cluster", lambda path, *_: whole)
    on_some = example_plan(stages=(stage((0, 2), hosts=("a",)), stage((3, 3), hosts=("d",))), cluster="unlike")
    assert cluster_of_plan(on_some, "unlike.json") is whole


def test_on_unlike_hosts_a_plan_is_priced_on_those_that_it_names():
    def on(*names):
        return example_plan(stages=tuple(stage((2 * n, 2 * n + 1), hosts=(name,)) for n, name in enumerate(names)))

    estimator = PlanEstimator(on("a", "b"), cluster=two_and_two())
    fast, mixed, slow = (estimator.estimate(on(*names)).plan for names in ("ab", "ac", "cd"))
    assert fast.step_s < mixed.step_s < slow.step_s
    assert [stage.hosts for stage in mixed.stages] == [("a",), ("c",)]
    assert mixed.stages[1].compute_s == pytest.approx(slow.stages[1].compute_s)
    with pytest.raises(ValueError, match="stage 1 is on the host 'e', but unlike has"):
        estimator.estimate(on("a", "e"))
