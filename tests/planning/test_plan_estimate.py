"""Costing a plan file: the same model, cluster and stages give the same figures."""

import collections
import dataclasses
import pathlib

import pytest

from alpa_dejavu import clusters, layers, sharding
from alpa_dejavu.clusters import named_cluster, write_cluster
from alpa_dejavu.clusters.changed_cluster import slowed, without
from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.planning import GivenStage, estimate, given_stages
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator, cluster_of_plan
from alpa_dejavu.problem import MeshConfig, PricedBy, Run, Submesh
from alpa_dejavu.testing import example_cluster
from models import chain
from plans import example_plan, hardware, stage, whole_plan
from unlike import two_and_two

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
    monkeypatch.setattr(sharding, "model_of_step", lambda traced, num_layers, **options: MODEL)
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
    assert list(made.plan.planning_s) == [
        "import", "trace", "features", "cost table", "placement", "confidence", "cache",
    ]  # fmt: skip
    assert (made.plan.model, made.plan.batch) == ("gpt-125m", 32)
    assert traced == [("gpt-125m", 8)]


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
    with pytest.raises(
        ValueError, match=rf"doesn't fit {cluster.name}: stage 1 is on host 'elsewhere', but {cluster.name} has '"
    ):
        PlanEstimator(plan, cluster=cluster).estimate(plan)


def on_hosts(*names):
    """The example plan with each stage on one of these hosts."""
    return dataclasses.replace(
        PLAN, stages=tuple(dataclasses.replace(one, hosts=(on,)) for one, on in zip(PLAN.stages, names, strict=True))
    )


def test_hosts_of_other_names_are_no_fewer_than_the_plan_s():
    two = on_hosts("node-7", "node-3")
    made = PlanEstimator(two, cluster=example_cluster(2)).estimate(two).plan
    assert [one.hosts for one in made.stages] == [("host-0",), ("host-1",)]
    assert "the plan's hosts have other names here: node-7 is taken to be host-0, and so on" in made.notes
    with pytest.raises(ValueError, match=r"stage 0 is on host 'node-7', but example has 'host-0'; .* 'node-3', but"):
        PlanEstimator(two, cluster=CLUSTER).estimate(two)
    one = on_hosts("node-7", "node-7")
    with pytest.raises(ValueError, match=r"its stages take 4 devices of host 'host-0', which has 3; plan again"):
        PlanEstimator(one, cluster=example_cluster(1, 3)).estimate(one)


def with_options(options, logical=(2, 1)):
    return dataclasses.replace(
        PLAN, stages=tuple(dataclasses.replace(one, options=options, logical_mesh=logical) for one in PLAN.stages)
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"allow_al_gather": True}, "option 'allow_al_gather', which Alpa hasn't; did you mean 'allow_all_gather'"),
        ({"allow_all_gather": 1}, "allow_all_gather=1, but it must be true or false"),
        ({"force_batch_dim_to_mesh_dim": 2}, "mesh_dim=2, but it must be an axis of the logical mesh"),
        ({"force_batch_dim_to_mesh_dim": False}, "mesh_dim=False, but it must be an axis of the logical mesh"),
        ({"all_reduce_threshold": "1"}, "all_reduce_threshold='1', but it must be a whole number of bytes"),
        ({"force_simple_heuristic": {}}, "force_simple_heuristic={}, but it must be text"),
    ],
)
def test_options_that_alpa_has_not_are_named(options, said):
    plan = with_options(options)
    with pytest.raises(ValueError, match=r"stage 0 has the auto-sharding option .*stage 1 has") as raised:
        PlanEstimator(plan, cluster=CLUSTER).estimate(plan)
    assert said in str(raised.value)


def test_options_that_an_estimate_does_not_go_by_are_named():
    plan = with_options({"force_batch_dim_to_mesh_dim": 0, "allow_all_gather": False, "prefer_reduce_scatter": True})
    notes = PlanEstimator(plan, cluster=CLUSTER).estimate(plan).plan.notes
    assert "this estimate ignores auto-sharding options of the plan: allow_all_gather" in notes


def test_a_logical_mesh_has_the_devices_of_its_submesh():
    plan = with_options({}, logical=(2, 2))
    with pytest.raises(ValueError, match="stage 1 has the logical mesh 2x2, but its submesh has 2 devices"):
        PlanEstimator(plan, cluster=CLUSTER).estimate(plan)


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


def test_the_cluster_is_the_one_that_the_plan_holds():
    whole = example_plan(stages=(stage((0, 3), (2, 8), (16, 1)),), cluster="anything", hardware=hardware(2))
    assert cluster_of_plan(whole) == named_cluster("p3.16xlarge", 2)
    assert cluster_of_plan(whole, "p4d.24xlarge") == named_cluster("p4d.24xlarge", 2)
    # Half of a host's devices, as Alpa may be given.
    half = dataclasses.replace(PLAN, hardware=hardware(devices=4))
    assert cluster_of_plan(half) == named_cluster("p3.16xlarge", 1, 4)


def test_the_cluster_of_a_plan_on_what_is_left_has_exactly_these_hosts():
    left = slowed(without(named_cluster("p3.16xlarge", 4), ["p3.16xlarge-1"]), "p3.16xlarge-3", 2.0)
    plan = example_plan(cluster=left.name, hardware=summary_of(left))
    for machine in (None, "p3.16xlarge"):
        assert cluster_of_plan(plan, machine) == left
    assert summary_of(cluster_of_plan(plan)) == plan.hardware


def test_a_cluster_that_cannot_be_made_again_is_refused_with_the_way_out():
    unlike = example_plan(cluster="unlike", hardware=summary_of(two_and_two()))
    with pytest.raises(ValueError, match=r"for the cluster 'unlike', and doesn't say of which machine .* --cluster"):
        cluster_of_plan(unlike)
    odd = dataclasses.replace(hardware(2), hosts=(*hardware(1).hosts, *hardware(1, 4, machine="b").hosts))
    with pytest.raises(ValueError, match=r"for 1 host of 8 V100 with 14.40 GiB and 1 host of 4 .* a whole cluster"):
        cluster_of_plan(example_plan(hardware=odd), "p3.16xlarge")


def test_of_an_old_plan_the_hosts_are_those_that_its_stages_name():
    names = [f"p3.16xlarge-{n}" for n in range(2)]
    stages = tuple(stage((2 * n, 2 * n + 1), (1, 8), (8, 1), hosts=(name,)) for n, name in enumerate(names))
    assert cluster_of_plan(example_plan(stages=stages, cluster="of any name")) == named_cluster("p3.16xlarge", 2)
    others = tuple(dataclasses.replace(one, hosts=(f"host-{n}",)) for n, one in enumerate(stages))
    with pytest.raises(ValueError, match=r"'2 x p3.16xlarge', and doesn't say of which machine its hosts are"):
        cluster_of_plan(example_plan(stages=others, cluster="2 x p3.16xlarge"))
    assert cluster_of_plan(example_plan(stages=others), "p4d.24xlarge") == named_cluster("p4d.24xlarge", 2)
    odd = example_plan(stages=(stage((0, 3), (1, 2), hosts=("a",)), stage((4, 4), (1, 1), (1, 1), hosts=("b",))))
    with pytest.raises(ValueError, match="the plan is for 3 devices, but 2 x p3"):
        cluster_of_plan(odd, "p3.16xlarge")


def test_an_estimate_says_what_is_not_known_of_an_old_plan():
    said = PlanEstimator(PLAN).estimate(PLAN).plan
    assert said.hardware == summary_of(named_cluster("p3.16xlarge", 1, 4))
    assert [note.split(",")[0] for note in said.notes] == [
        "the plan file is of an old version",
        "the plan file doesn't name the cost models and the calibration of its prices; here they may differ",
    ]


def test_an_estimate_goes_by_the_models_of_the_plan_and_says_where_it_does_not():
    cluster = named_cluster("p3.16xlarge", 2, 4)
    plan = whole_plan(hardware=summary_of(cluster))
    estimator = PlanEstimator(plan)
    assert (type(estimator.prices.models.communication).__name__, estimator.cluster) == ("Links", cluster)
    made = estimator.estimate(plan).plan
    assert made.notes == ()
    assert (made.priced_by, made.hardware) == (plan.priced_by, plan.hardware)
    other = PlanEstimator(plan, cluster="g4dn.12xlarge", communication="free").estimate(plan).plan
    assert [note.split(",")[0] for note in other.notes] == [
        f"the plan was made for {plan.hardware.text}",
        "the plan's hosts have other names here: p3.16xlarge-0 is taken to be g4dn.12xlarge-0",
        "the plan's latency was analytic",
        "the plan's communication was links",
    ]
    by = dataclasses.replace(plan.priced_by, latency="MeasuredRoofline", calibration="of a file")
    lost = dataclasses.replace(plan, priced_by=by)
    notes = PlanEstimator(lost).estimate(lost).plan.notes
    assert "the plan's latency was MeasuredRoofline, this estimate's is kernels" in notes
    assert "the plan's calibration was of a file, this estimate has no calibration" in notes
    unfused = PlanEstimator(plan, attention="plain").estimate(plan).plan.notes
    assert "the plan's attention was as the runtime has it, this estimate's is plain" in unfused


def test_on_unlike_hosts_a_plan_is_priced_on_those_that_it_names():
    def on(*names):
        return example_plan(stages=tuple(stage((2 * n, 2 * n + 1), hosts=(name,)) for n, name in enumerate(names)))

    estimator = PlanEstimator(on("a", "b"), cluster=two_and_two())
    fast, mixed, slow = (estimator.estimate(on(*names)).plan for names in ("ab", "ac", "cd"))
    assert fast.step_s < mixed.step_s < slow.step_s
    assert [stage.hosts for stage in mixed.stages] == [("a",), ("c",)]
    assert mixed.stages[1].compute_s == pytest.approx(slow.stages[1].compute_s)
    with pytest.raises(ValueError, match="stage 1 is on host 'e', but unlike has"):
        estimator.estimate(on("a", "e"))


def test_an_estimate_is_for_the_runtime_of_the_plan_or_for_the_one_that_is_asked_for():
    by = PricedBy("analytic", "alpha-beta", runtime="jax")
    theirs = dataclasses.replace(PLAN, priced_by=by)
    found = PlanEstimator(theirs, cluster=CLUSTER).estimate(theirs).plan
    ours = PlanEstimator(theirs, cluster=CLUSTER, runtime="alpa").estimate(theirs).plan
    assert (found.priced_by.runtime, ours.priced_by.runtime) == ("jax", "alpa")
    assert found.step_s > ours.step_s == PlanEstimator(PLAN, cluster=CLUSTER).estimate(PLAN).plan.step_s
    assert "the plan's runtime was jax, this estimate's is alpa" in ours.notes


def test_another_model_is_named():
    made = PlanEstimator(PLAN, model="bert-mine", cluster=CLUSTER).estimate(PLAN)
    assert made.plan.model == "bert-mine"


@pytest.mark.parametrize("none", [None, -1])
def test_a_batch_that_is_forced_onto_no_axis_is_free(none):
    free, told = with_options({}), with_options({"force_batch_dim_to_mesh_dim": none})
    configs = [PlanEstimator(plan, cluster=CLUSTER).estimate(plan).space.configs[0][0] for plan in (free, told)]
    assert [config.batch_forced for config in configs] == [False, False]


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


def test_hosts_that_a_plan_leaves_unused_are_of_its_cluster():
    names = [f"p3.16xlarge-{n}" for n in range(2)]
    stages = tuple(stage((2 * n, 2 * n + 1), (1, 8), (8, 1), hosts=(name,)) for n, name in enumerate(names))
    assert cluster_of_plan(example_plan(stages=stages, hardware=hardware(4))).num_devices == 32


def test_a_machines_file_is_found_again(tmp_path):
    text = (pathlib.Path(clusters.__file__).parent / "p3.8xlarge.json").read_text()
    path = tmp_path / "mine.json"
    path.write_text(text.replace('"p3.8xlarge"', '"mine"'))
    cluster = without(named_cluster(str(path), 3), ["mine-0"])
    assert cluster.name == "2 x mine"
    plan = example_plan(cluster=cluster.name, hardware=summary_of(cluster))
    assert cluster_of_plan(plan) == cluster
    path.unlink()
    with pytest.raises(ValueError, match=r"the cluster '2 x mine': there is no file '.*mine.json'; .* --cluster"):
        cluster_of_plan(plan)


def test_alike_hosts_of_a_plan_are_looked_at_too():
    twice = tuple(dataclasses.replace(one, hosts=("host-1",), submesh=Submesh(1, 4)) for one in PLAN.stages)
    meshes = tuple(dataclasses.replace(one, logical_mesh=(4, 1)) for one in twice)
    with pytest.raises(ValueError, match="its stages take 8 devices of host 'host-1', which has 4"):
        estimate(MODEL, example_cluster(2), Run(4), given_stages(dataclasses.replace(PLAN, stages=meshes)))


@pytest.mark.parametrize("name", ["unlike.json", "unlike.yaml"])
def test_a_file_of_a_cluster_that_has_the_plans_hosts_is_taken_as_it_is(tmp_path, name):
    whole, path = two_and_two(), tmp_path / name
    write_cluster(whole, path)
    on_some = example_plan(stages=(stage((0, 2), hosts=("a",)), stage((3, 3), hosts=("d",))), cluster="unlike")
    assert cluster_of_plan(on_some, str(path)) == whole
