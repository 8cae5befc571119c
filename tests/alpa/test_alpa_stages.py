"""Alpa's construction of stages, planned by us, on a virtual mesh that nothing stands behind: no Ray, no devices."""

import dataclasses
from types import SimpleNamespace

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.device_mesh import VirtualPhysicalMesh
from alpa.global_env import global_config
from alpa.pipeline_parallel import stage_construction

import alpa_dejavu
from alpa_dejavu import DejavuStageOption, NoPlanError
from alpa_dejavu.alpa._nodes import Nodes
from alpa_dejavu.alpa._profile import _kind_differences
from alpa_dejavu.alpa.ray_cluster import cluster_of
from alpa_dejavu.calibration import Calibration
from alpa_dejavu.calibration.history import PastRun, Store
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.exports.alpa_code import alpa_options
from alpa_dejavu.planning import GivenStage
from alpa_dejavu.planning.given.plan_estimate import cluster_of_plan
from alpa_dejavu.planning.search.given_stages import stage_differences
from alpa_dejavu.plans.plan_file import read_plan, write_plan
from alpa_dejavu.problem import Link, MeshConfig, ReductionServer, Submesh
from alpa_dejavu.testing import example_cluster
from planned_alpa import PlannedError, stopped_after_planning
from plans import example_plan, hardware
from train_steps import predict_in_stages

LAYERS, HIDDEN, BATCH = 4, 32, 16


@pytest.fixture(autouse=True)
def _stops_after_planning(monkeypatch):
    yield from stopped_after_planning(monkeypatch)


def virtual_mesh(hosts=1, devices=4, resources=None):
    info = [
        {"NodeManagerAddress": f"10.0.0.{n}", "NodeManagerHostname": f"node-{n}", "Resources": resources or {}}
        for n in range(hosts)
    ]
    return VirtualPhysicalMesh(list(range(hosts)), info, devices)


def train_step(weights, batch):
    def loss(weights):
        return jnp.mean((predict_in_stages(weights, batch["x"]) - batch["y"]) ** 2)

    gradients = alpa.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def forward_step(weights, batch):
    return predict_in_stages(weights, batch["x"])


def planned(option, step=train_step, mesh=None, layers=None, **method):
    weights = [jnp.ones((HIDDEN, HIDDEN)) for _ in range(LAYERS)]
    batch = {"x": jnp.ones((BATCH, HIDDEN)), "y": jnp.ones((BATCH, HIDDEN))}
    settings = {"num_micro_batches": 2, "layer_option": layers or alpa.ManualLayerOption()} | method
    parallel = alpa.PipeshardParallel(devices=mesh or virtual_mesh(), stage_option=option, **settings)
    arguments = {"donate_argnums": ()} if step is forward_step else {}
    with pytest.raises(PlannedError) as caught:
        alpa.parallelize(step, method=parallel, **arguments)(weights, batch)
    return caught.value.result


def test_alpa_runs_the_plan_as_a_manual_option():
    option = DejavuStageOption()
    stages, stage_to_mesh, meshes, manual = planned(option)
    plan = option.last_plan
    assert manual.forward_stage_layer_ids == plan.layer_ids
    assert [n for ids in plan.layer_ids for n in ids] == list(range(LAYERS))
    assert sum(mesh.num_devices for mesh in meshes) == 4
    assert len(stages) == 2 * len(meshes) == len(stage_to_mesh)
    assert [tuple(mesh.shape) for mesh in meshes] == [
        (stage.submesh.num_hosts, stage.submesh.devices_per_host) for stage in plan.stages
    ]
    assert list(plan.planning_s) == [
        "cluster", "features", "sharding", "cost table", "slicing", "placement", "confidence", "memory",
        "cache",
    ]  # fmt: skip
    assert stage_construction.get_last_dp_result()[1] == plan.layer_ids
    assert plan.stages[0].hosts == ("node-0",)


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b_overlap_friendly", "gpipe"])
def test_every_schedule_is_planned_for(schedule):
    option = DejavuStageOption()
    planned(option, pipeline_schedule=schedule)
    assert option.last_plan.schedule == schedule


def test_inference_is_planned_too():
    option = DejavuStageOption()
    planned(option, forward_step, pipeline_schedule="inference")
    assert option.last_plan.schedule == "inference"
    assert option.last_plan.stages[0].collective_s >= 0


def test_the_logical_space_is_honoured():
    option = DejavuStageOption(submesh_logical_shape_space="model_parallel_only")
    planned(option)
    assert all(stage.logical_mesh[0] == 1 for stage in option.last_plan.stages)


def test_imbalance_is_honoured():
    option = DejavuStageOption("manual", [(1, 1), (1, 2)], stage_imbalance_tolerance=0.2)
    planned(option)
    # The first layer has no gradient to pass on: it is too little work for a quarter of the devices.
    assert [stage.submesh.devices_per_host for stage in option.last_plan.stages] == [2, 2]
    assert option.last_plan.layer_ids == [[0, 1], [2, 3]]


def test_several_hosts_on_gpus_go_by_the_data_sheet(monkeypatch):
    monkeypatch.setattr(global_config, "backend", "gpu")
    option = DejavuStageOption()
    planned(option, mesh=virtual_mesh(2, 4, {"accelerator_type:V100": 1.0}))
    assert "p3.16xlarge" in option.last_plan.cluster
    with pytest.raises(ValueError, match="abacus"):
        planned_fails(DejavuStageOption(), mesh=virtual_mesh(1, 4, {"accelerator_type:abacus": 1.0}))


def planned_fails(option, **kwargs):
    """`planned` where planning itself raises."""
    try:
        planned(option, **kwargs)
    except PlannedError as error:
        raise AssertionError("it was planned") from error


@pytest.mark.parametrize("cluster", ["p3.8xlarge", example_cluster(num_hosts=1)])
def test_a_given_cluster_is_taken(cluster):
    option = DejavuStageOption(cluster=cluster)
    planned(option)
    assert option.last_plan.cluster == (cluster if isinstance(cluster, str) else cluster.name).replace("p3", "1 x p3")


def test_a_cluster_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"hosts of \[4, 4\] devices"):
        planned_fails(DejavuStageOption(cluster=example_cluster(num_hosts=2)))


def test_a_batch_that_cannot_be_divided_is_refused_before_tracing():
    def never(*_):
        raise AssertionError("it was traced")

    with pytest.raises(ValueError, match=r"num_micro_batches is 3, which doesn't divide the batch of \(16, 32\)"):
        planned_fails(DejavuStageOption(), step=never, num_micro_batches=3)
    with pytest.raises(ValueError, match="num_micro_batches is 0"):
        planned_fails(DejavuStageOption(), step=never, num_micro_batches=0)


def test_no_layers_are_refused():
    with pytest.raises(ValueError, match="0 layers"):
        planned_fails(DejavuStageOption(), layers=alpa.AutoLayerOption(layer_num=0))


def test_more_devices_than_there_are_are_refused():
    with pytest.raises(ValueError, match=r"\(1, 8\) asks for more than there is: the cluster has 1 hosts of 4"):
        planned_fails(DejavuStageOption("manual", [(1, 8)]))


def test_a_mesh_that_runs_already_is_refused():
    mesh = virtual_mesh()
    mesh.launched_physical_mesh_group = object()
    with pytest.raises(NotImplementedError, match=r"alpa\.shutdown"):
        planned_fails(DejavuStageOption(), mesh=mesh)


def test_the_model_that_alpa_gives_is_read_right():
    from alpa_dejavu.alpa import _stages

    seen = []
    with pytest.MonkeyPatch.context() as patch:
        read = _stages.model_of
        patch.setattr(_stages, "model_of", lambda *args: seen.append(read(*args)) or seen[-1])
        planned(DejavuStageOption())
    (model,) = seen
    weight = HIDDEN * HIDDEN * 4
    per_layer = 2 * (BATCH // 2) * HIDDEN * HIDDEN
    assert model.num_layers == LAYERS
    assert model.parameter_bytes == LAYERS * weight
    assert sum(t.num_bytes for t in model.tensors if t.role == "gradient") == LAYERS * weight
    assert [layer.forward.product_flop for layer in model.layers] == [per_layer] * LAYERS
    assert [layer.backward.product_flop for layer in model.layers] == [per_layer] + [2 * per_layer] * (LAYERS - 1)
    assert all(len(layer.exchanged_bytes) == 1 for layer in model.layers)
    assert jax.tree_util.tree_all([dataclasses.is_dataclass(layer) for layer in model.layers])


def saved(tmp_path, **changes):
    """A plan file of what we plan here: 4 layers, 2 micro-batches, batch 16, 1 host of 4 devices."""
    option = DejavuStageOption("manual", [(1, 2)])
    planned(option)
    return write_plan(dataclasses.replace(option.last_plan, **({"batch": BATCH} | changes)), tmp_path / "plan.json")


def test_a_plan_file_is_run_as_it_is(tmp_path):
    path = saved(tmp_path)
    expected = read_plan(path)
    option = DejavuStageOption(plan=path)
    _, _, meshes, manual = planned(option)
    assert option.last_plan == expected
    assert manual.forward_stage_layer_ids == expected.layer_ids
    assert manual.submesh_autosharding_option_dicts == [alpa_options(stage) for stage in expected.stages]
    assert [tuple(mesh.shape) for mesh in meshes] == [(1, 2), (1, 2)]
    assert planned(DejavuStageOption(plan=expected))[3] == manual


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"num_micro_batches": 4}, "it has 2 micro-batches, but here are 4"),
        ({"pipeline_schedule": "gpipe"}, "its pipeline_schedule is '1f1b', but here it is 'gpipe'"),
        ({"layers": alpa.AutoLayerOption(layer_num=2)}, "it has 4 layers, but the step is cut into 2"),
        ({"mesh": (4, 1)}, "stage 0 is on 1 hosts with 2 devices each, but the cluster has 4 hosts of 1 devices"),
    ],
)
def test_a_plan_for_something_else_is_refused_with_the_difference(tmp_path, here, said):
    option = DejavuStageOption(plan=saved(tmp_path))
    if "mesh" in here:
        here = {"mesh": virtual_mesh(*here["mesh"])}
    with pytest.raises(ValueError, match=rf"the plan for .* doesn't fit: .*{said}"):
        planned_fails(option, **here)


def moved(plan, *hosts, **changes):
    """The plan with its stages on these hosts."""
    both = zip(plan.stages, hosts, strict=True)
    stages = tuple(dataclasses.replace(stage, hosts=tuple(own)) for stage, own in both)
    return dataclasses.replace(plan, stages=stages, **changes)


def whole(plan, size):
    """The plan with its stages on so many hosts of one device each."""
    shape = {"submesh": Submesh(size, 1), "logical_mesh": (size, 1)}
    return dataclasses.replace(plan, stages=tuple(dataclasses.replace(s, **shape) for s in plan.stages))


@pytest.mark.parametrize("hosts", [("node-2", "node-0"), ("node-0", "node-3"), ("p3.8xlarge-2", "p3.8xlarge-1")])
def test_stages_are_on_the_hosts_of_their_plan(tmp_path, hosts):
    held = hardware(4, 1, "p3.8xlarge") if "p3" in hosts[0] else None
    plan = moved(whole(read_plan(saved(tmp_path)), 1), *[[host] for host in hosts], hardware=held)
    _, _, meshes, _ = planned(DejavuStageOption(plan=plan), mesh=virtual_mesh(4, 1))
    assert [mesh.host_ids for mesh in meshes] == [[int(host[-1])] for host in hosts]
    assert [mesh.device_strs for mesh in meshes] == [[f"10.0.0.{host[-1]}:gpu:0"] for host in hosts]


def test_what_is_planned_for_unlike_links_is_where_it_was_planned():
    cluster = example_cluster(num_hosts=4, devices_per_host=1)
    slow = [[Link(1e-5, 1e9 if a % 2 == b % 2 else 1e6) for b in range(4)] for a in range(4)]
    islands = dataclasses.replace(cluster, links=tuple(map(tuple, slow)))
    option = DejavuStageOption("manual", [(2, 1)], cluster=islands)
    _, _, meshes, _ = planned(option, mesh=virtual_mesh(4, 1))
    names = [host.name for host in islands.hosts]
    hosts = [tuple(names[host] for host in mesh.host_ids) for mesh in meshes]
    assert hosts == [stage.hosts for stage in option.last_plan.stages]
    assert {frozenset(mesh.host_ids) for mesh in meshes} <= {frozenset({0, 2}), frozenset({1, 3})}


@pytest.mark.parametrize("held", [None, hardware(2, 2, "p3.8xlarge")], ids=["an old plan", "of fewer hosts"])
def test_hosts_of_another_cluster_are_not_guessed(tmp_path, held):
    plan = moved(read_plan(saved(tmp_path)), ["p3.8xlarge"], ["p3.8xlarge"], hardware=held)
    with pytest.raises(ValueError, match=r"stage 0 is on host 'p3\.8xlarge', but the cluster has 'node-0', 'node-1', "):
        planned_fails(DejavuStageOption(plan=plan), mesh=virtual_mesh(3, 4))


def test_a_plan_of_ours_says_its_cluster_and_what_was_asked_for():
    option = DejavuStageOption("manual", [(1, 2)], cluster="p3.8xlarge", communication="links", slicer="exhaustive")
    planned(option)
    held, by = option.last_plan.hardware, option.last_plan.priced_by
    assert held == summary_of(named_cluster("p3.8xlarge"))
    assert (by.latency, by.communication, by.calibration) == ("kernels", "links", "")
    assert (by.slicer, by.submeshes) == ("exhaustive", "manual")
    assert (by.layers, by.micro_batches, by.strategy, by.risk) == (LAYERS, 2, "dejavu", 0.01)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ((["node-0"], ["elsewhere"]), r"stage 1 is on host 'elsewhere', but the cluster has 'node-0', 'node-1'"),
        ((["p3.8xlarge-0"], ["p3.8xlarge-1"]), r"it is for 4 devices, but the cluster has 8 \(2 hosts of 4\)"),
        ((["node-0", "node-0"], ["node-1"]), r"stage 0 is on 1 hosts, but names \['node-0', 'node-0'\]"),
    ],
)
def test_hosts_that_are_not_there_are_named(tmp_path, hosts, said):
    plan = moved(read_plan(saved(tmp_path)), *hosts, cluster="1 x p3.8xlarge" if "p3" in hosts[0][0] else "ours")
    with pytest.raises(ValueError, match=said):
        planned_fails(DejavuStageOption(plan=plan), mesh=virtual_mesh(2, 4))


def test_options_that_alpa_has_not_are_named_before_it_is_asked(tmp_path):
    plan = read_plan(saved(tmp_path))
    stages = tuple(dataclasses.replace(stage, options={"allow_al_gather": True}) for stage in plan.stages)
    with pytest.raises(ValueError, match=r"doesn't fit: stage 0 has .* 'allow_al_gather', which Alpa hasn't; did you"):
        planned_fails(DejavuStageOption(plan=dataclasses.replace(plan, stages=stages)))


def test_the_options_that_are_known_are_alpas():
    from alpa.shard_parallel.auto_sharding import AutoShardingOption

    defaults = dataclasses.asdict(AutoShardingOption())
    mesh = MeshConfig((2, 1), 2, 1, defaults)
    assert [*stage_differences([GivenStage(0, 1, Submesh(1, 2), mesh)], {}, "the cluster", [2])] == []
    for name in defaults:
        wrong = dataclasses.replace(mesh, options={name: 0.5})
        (said,) = stage_differences([GivenStage(0, 1, Submesh(1, 2), wrong)], {}, "the cluster", [2])
        assert f"{name}=0.5, but it must be" in said


def test_a_host_has_no_more_devices_than_it_has(tmp_path):
    plan = moved(read_plan(saved(tmp_path)), ["node-0"], ["node-0"])
    with pytest.raises(ValueError, match=r"its stages take 4 devices of host 'node-0', which has 3"):
        planned_fails(DejavuStageOption(plan=plan), mesh=virtual_mesh(2, 3))


def test_workers_that_run_on_other_hosts_are_not_taken(tmp_path):
    plan = moved(whole(read_plan(saved(tmp_path)), 1), ["node-2"], ["node-0"])
    mesh = virtual_mesh(4, 1)
    running = [mesh.slice_2d([n], [(0,)]) for n in (0, 2)]
    mesh.launched_physical_mesh_group = SimpleNamespace(meshes=running)
    with pytest.raises(ValueError, match=r"numbered \[\(2,\), \(0,\)\], .* on \[\(0,\), \(2,\)\] already: call alpa"):
        planned_fails(DejavuStageOption(plan=plan), mesh=mesh)


def test_a_plan_for_another_batch_is_refused(tmp_path):
    with pytest.raises(ValueError, match="it is for batches of 64, but here they are of 16"):
        planned_fails(DejavuStageOption(plan=saved(tmp_path, batch=64)))


def test_remat_of_a_plan_needs_a_layer_option_with_it(tmp_path):
    plan = read_plan(saved(tmp_path))
    first, second = plan.stages
    stages = dataclasses.replace(first, layers=(0, 1)), dataclasses.replace(second, layers=(2, 3), remat="layer")
    plan = dataclasses.replace(plan, stages=stages)
    with pytest.raises(ValueError, match=r"stage 1 has remat, but layers 2\.\.3 .*remat_layers=\[2, 3\]"):
        planned_fails(DejavuStageOption(plan=plan))
    with pytest.raises(ValueError, match="stage 1 has remat"):
        planned_fails(DejavuStageOption(plan=plan), layers=alpa_dejavu.DejavuLayerOption(remat_layers=[0, 1]))
    for layers in (alpa_dejavu.DejavuLayerOption(remat_layers=[2, 3]), alpa.ManualLayerOption(remat_layer=True)):
        assert len(planned(DejavuStageOption(plan=plan), layers=layers)[2]) == 2


def test_a_plan_that_cannot_be_read_is_refused_before_anything_is_traced(tmp_path):
    with pytest.raises(ValueError, match="gone"):
        DejavuStageOption(plan=tmp_path / "gone.json")
    with pytest.raises(TypeError, match="plan is 3"):
        DejavuStageOption(plan=3)


def test_a_history_corrects_what_is_predicted_and_knows_what_was(tmp_path):
    path = tmp_path / "history.sqlite"
    first, again = (DejavuStageOption(history=path) for _ in range(2))
    planned(first)
    plan = first.last_plan
    assert plan.correction is None
    for _ in range(5):
        Store(path).append(PastRun(plan, first.last_origin, plan.uncorrected_s, (2 * plan.step_s,) * 3))
    planned(again)
    assert again.last_origin == first.last_origin
    assert again.last_plan.correction.runs == 5
    assert 1.5 < again.last_plan.correction.factor < 2
    assert again.last_plan.layer_ids == plan.layer_ids
    given = DejavuStageOption(plan=plan, history=path)
    planned(given)
    assert given.last_plan == plan
    assert given.last_origin == dataclasses.replace(first.last_origin, predictor=given.last_origin.predictor)
    assert given.last_origin.predictor != first.last_origin.predictor


@pytest.mark.parametrize(("name", "said"), [("amp", "amp (paper)"), ("megatron", "megatron"), ("alpa", "alpa")])
def test_another_strategy_chooses_the_stages(name, said):
    option = DejavuStageOption(strategy=name, cluster=example_cluster(2), contingencies=True)
    _, _, meshes, manual = planned(option, mesh=virtual_mesh(2, 4))
    plan = option.last_plan
    assert (plan.strategy, plan.num_micro_batches) == (said, 2)
    assert manual.forward_stage_layer_ids == plan.layer_ids
    assert list(plan.contingencies) == ["host-0", "host-1"]
    assert plan.confidence.interval_s[0] < plan.step_s < plan.confidence.interval_s[1]
    assert sum(mesh.num_devices for mesh in meshes) == 8
    assert [mesh.host_ids for mesh in meshes] == [
        [int(host.removeprefix("host-")) for host in stage.hosts] for stage in plan.stages
    ]
    assert manual.submesh_autosharding_option_dicts == [alpa_options(stage) for stage in plan.stages]


def test_a_strategy_plans_for_1f1b_alone():
    with pytest.raises(ValueError, match=r"pipeline_schedule is 'gpipe', but amp \(paper\) plans for '1f1b'"):
        planned_fails(DejavuStageOption(strategy="amp"), pipeline_schedule="gpipe")


def test_a_plan_that_is_estimated_only_is_not_run(tmp_path):
    plan = dataclasses.replace(read_plan(saved(tmp_path)), strategy="hetpipe (ed)", runs_on_alpa=False)
    with pytest.raises(ValueError, match=r"it is estimated only, since Alpa's runtime can't run what hetpipe \(ed\)"):
        planned_fails(DejavuStageOption(plan=plan))
    with pytest.raises(ValueError, match=r"it is estimated only, since Alpa's runtime has no reduction servers"):
        planned_fails(DejavuStageOption(plan=dataclasses.replace(plan, strategy="")))


def test_a_calibration_prices_what_alpa_plans():
    cluster = example_cluster(1)
    slow = dataclasses.replace(cluster.hosts[0].device, step_s=1.0, name="example")
    calibration = Calibration("slow", "made up", "2024-05-31", devices={"example": slow})
    options = [DejavuStageOption(cluster=cluster), DejavuStageOption(cluster=cluster, calibration=calibration)]
    for option in options:
        planned(option)
    assert options[1].last_plan.step_s > 1.0 > options[0].last_plan.step_s
    other = dataclasses.replace(calibration, devices={"other": dataclasses.replace(slow, name="other")})
    with pytest.raises(ValueError, match="has 'example', but the calibration slow knows"):
        planned_fails(DejavuStageOption(cluster=cluster, calibration=other))


def test_the_plan_is_logged(caplog):
    with caplog.at_level("INFO", "alpa_dejavu"):
        planned(DejavuStageOption())
    assert "predicted" in caplog.text
    assert "submesh" in caplog.text


def test_submeshes_given_by_hand_are_the_only_ones():
    option = DejavuStageOption("manual", [(1, 1)])
    _, _, meshes, _ = planned(option)
    assert [tuple(mesh.shape) for mesh in meshes] == [(1, 1)] * 4


def test_a_model_larger_than_memory_is_refused():
    tiny = example_cluster(num_hosts=1, memory_bytes=1000.0)
    with pytest.raises(NoPlanError, match="are missing"):
        planned_fails(DejavuStageOption(cluster=tiny))


def test_other_stage_options_are_left_to_alpa():
    DejavuStageOption()
    _, _, meshes, _ = planned(alpa.UniformStageOption(num_stages=4))
    assert len(meshes) == 4


def test_alpas_own_option_with_our_costs_and_search():
    from alpa import AutoStageOption

    with alpa_dejavu.installed("get_compute_cost", "training_dp"):
        _, _, meshes, _ = planned(AutoStageOption())
    assert sum(mesh.num_devices for mesh in meshes) == 4


def test_the_stand_in_returns_alpas_arrays():
    seen = {}
    original = stage_construction.training_dp

    def look(*args):
        seen["cost"], seen["room"] = args[5:7]
        return original(*args)

    with alpa_dejavu.installed("get_compute_cost"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_construction, "training_dp", look)
        planned(alpa.AutoStageOption())
    assert seen["cost"].shape == seen["room"].shape == (LAYERS, LAYERS, 3, 4)
    assert np.isfinite(seen["cost"][0, LAYERS - 1, 2]).any()
    assert np.isinf(seen["cost"][1, 0]).all()


def test_the_hosts_of_a_mesh_are_in_the_order_of_the_plan(tmp_path):
    plan = moved(whole(read_plan(saved(tmp_path)), 2), ["node-3", "node-0"], ["node-1", "node-2"])
    _, _, meshes, manual = planned(DejavuStageOption(plan=plan), mesh=virtual_mesh(4, 1))
    assert [mesh.host_ids for mesh in meshes] == [[3, 0], [1, 2]]
    assert [info["NodeManagerAddress"] for info in meshes[0].host_info] == ["10.0.0.3", "10.0.0.0"]
    assert manual.submesh_physical_shapes == ((2, 1), (2, 1))


def test_stages_on_a_host_have_devices_of_their_own_and_hosts_may_be_left(tmp_path):
    plan = moved(read_plan(saved(tmp_path)), ["node-1"], ["node-1"])
    _, _, meshes, _ = planned(DejavuStageOption(plan=plan), mesh=virtual_mesh(2, 4))
    assert [(mesh.host_ids, mesh.devices) for mesh in meshes] == [([1], [(2, 3)]), ([1], [(0, 1)])]


def test_the_names_of_a_given_cluster_count(tmp_path):
    cluster = dataclasses.replace(example_cluster(num_hosts=2), name="ours")
    names = [host.name for host in cluster.hosts]
    plan = moved(read_plan(saved(tmp_path)), [names[1]], [names[0]], cluster="ours")
    _, _, meshes, _ = planned(DejavuStageOption(plan=plan, cluster=cluster), mesh=virtual_mesh(2, 4))
    assert [mesh.host_ids for mesh in meshes] == [[1], [0]]


def test_alike_hosts_of_other_names_are_in_the_order_of_the_plans_cluster(tmp_path):
    """Also where a host between them was lost, so that their names' numbers aren't their places."""
    left = hardware(4, 2, "p3.8xlarge").without(["p3.8xlarge-1"])
    plan = moved(read_plan(saved(tmp_path)), ["p3.8xlarge-3"], ["p3.8xlarge-2"], hardware=left)
    _, _, meshes, _ = planned(DejavuStageOption(plan=plan), mesh=virtual_mesh(3, 2))
    assert [mesh.host_ids for mesh in meshes] == [[2], [1]]


def test_unlike_hosts_of_other_names_are_not_guessed(tmp_path):
    alike = hardware(2, 2)
    unlike = dataclasses.replace(
        alike, hosts=tuple(dataclasses.replace(host, kind=n) for n, host in enumerate(alike.hosts))
    )
    plan = moved(read_plan(saved(tmp_path)), *[[host.name] for host in unlike.hosts], hardware=unlike)
    with pytest.raises(ValueError, match=r"stage 0 is on host 'p3.16xlarge-0', but the cluster has 'node-0', 'node-1'"):
        planned_fails(DejavuStageOption(plan=plan), mesh=virtual_mesh(2, 2))


def test_alpas_cpu_cluster_is_that_of_this_machine():
    """One machine's, in whichever number of Ray nodes: its plans can be estimated by the name of its type."""
    option = DejavuStageOption()
    planned(option)
    held = option.last_plan.hardware
    assert (held.machine, held.shared, [host.name for host in held.hosts]) == ("local-cpu", True, ["node-0"])
    again = summary_of(cluster_of_plan(option.last_plan))
    assert (again.machine, again.shared, again.hosts[0].name) == ("local-cpu", True, "node-0")


def test_an_old_plan_on_hosts_of_a_machine_type_is_put_by_their_names(tmp_path):
    plan = moved(whole(read_plan(saved(tmp_path)), 1), ["p3.8xlarge-2"], ["p3.8xlarge-1"], hardware=None)
    _, _, meshes, _ = planned(DejavuStageOption(plan=plan), mesh=virtual_mesh(4, 1))
    assert [mesh.host_ids for mesh in meshes] == [[2], [1]]


def test_hosts_may_have_unlike_numbers_of_devices(tmp_path):
    mesh = virtual_mesh(1, 4)
    infos = [{"NodeManagerAddress": f"10.0.0.{n}", "NodeManagerHostname": f"node-{n}"} for n in range(3)]
    mesh.host_ids, mesh.every_host = [1], tuple(zip(infos, (1, 4, 2), strict=True))
    plan = moved(read_plan(saved(tmp_path)), ["node-1"], ["node-2"], cluster="ours")
    _, _, meshes, _ = planned(DejavuStageOption(plan=plan), mesh=mesh)
    assert [(m.host_ids, m.devices, m.device_strs[0]) for m in meshes] == [
        ([1], [(0, 1)], "10.0.0.1:gpu:0"),
        ([2], [(0, 1)], "10.0.0.2:gpu:0"),
    ]
    with pytest.raises(ValueError, match=r"stage 0 is on 1 hosts with 2 devices each, .* hosts of \[1, 4, 2\] devices"):
        planned_fails(DejavuStageOption(plan=moved(plan, ["node-0"], ["node-2"])), mesh=mesh)
    option = DejavuStageOption()
    _, _, meshes, _ = planned(option, mesh=mesh)
    assert {host for stage in option.last_plan.stages for host in stage.hosts} == {"node-1"}
    assert all(m.host_ids == [1] for m in meshes)


def test_inside_alpa_there_are_no_reduction_servers():
    bare = example_cluster(2, 2)
    beside = dataclasses.replace(bare, reduction_servers=(ReductionServer("s", 1e9),))
    assert cluster_of(virtual_mesh(2, 2), beside) == bare


def test_stages_may_take_parts_of_the_same_hosts(tmp_path):
    shape = {"submesh": Submesh(2, 1), "logical_mesh": (2, 1), "hosts": ("node-1", "node-0")}
    plan = read_plan(saved(tmp_path))
    plan = dataclasses.replace(plan, stages=tuple(dataclasses.replace(stage, **shape) for stage in plan.stages))
    _, _, meshes, _ = planned(DejavuStageOption(plan=plan), mesh=virtual_mesh(2, 2))
    assert [(mesh.shape, mesh.host_ids) for mesh in meshes] == [((2, 1), [1, 0])] * 2
    assert [[list(own) for own in mesh.devices] for mesh in meshes] == [[[1], [1]], [[0], [0]]]


def test_stages_go_across_hosts_that_are_slow_inside():
    equal = example_cluster(2, 2)
    within, between = Link(1e-5, 1e7), Link(1e-5, 1e9)
    slow = dataclasses.replace(equal, links=((within, between), (between, within)))
    options = [DejavuStageOption(cluster=cluster, communication="links") for cluster in (slow, equal)]
    shapes = []
    for option in options:
        _, _, meshes, _ = planned(option, mesh=virtual_mesh(2, 2), num_micro_batches=1)
        shapes.append([tuple(mesh.shape) for mesh in meshes])
    assert all(devices == 1 for _, devices in shapes[0])
    assert any(devices == 2 for _, devices in shapes[1])


def test_training_goes_by_the_order_that_the_plans_cluster_has_its_hosts_in(tmp_path, monkeypatch):
    """Stages are in another order on them, and some hosts aren't used."""
    plan = moved(read_plan(saved(tmp_path)), ["p3.8xlarge-3"], ["p3.8xlarge-1"], hardware=hardware(4, 2, "p3.8xlarge"))
    of_four = [f"p3.8xlarge-{n}" for n in range(4)]

    def nodes(plan, *names):
        infos = [{"NodeManagerHostname": name, "NodeManagerAddress": name, "NodeID": f"id of {name}"} for name in names]
        mesh = VirtualPhysicalMesh(list(range(len(infos))), infos, 2)
        monkeypatch.setattr("alpa.device_mesh.get_global_virtual_physical_mesh", lambda: mesh)
        known = Nodes()
        known.on_their_hosts(plan)
        return known.named

    assert nodes(plan, "one", "two") == {"p3.8xlarge-1": "id of one", "p3.8xlarge-3": "id of two"}
    assert nodes(plan, *"abcd") == {name: f"id of {node}" for name, node in zip(of_four, "abcd", strict=True)}
    assert nodes(plan, *of_four[::-1]) == {name: f"id of {name}" for name in of_four}
    with pytest.raises(RuntimeError, match="but Alpa has 2"):
        nodes(moved(plan, ["p3.8xlarge-0"], ["p3.8xlarge-0"]), "one", "two")


@pytest.mark.parametrize(
    ("held", "differences"),
    [
        (hardware(), ["its devices are those of p3.16xlarge, but the cluster's are CPUs"]),
        (hardware(machine="local-cpu"), []),
        (hardware(machine=""), []),
        (None, ["its devices are those of p3.16xlarge, but the cluster's are CPUs"]),
    ],
    ids=["cards", "CPUs", "not known", "an old plan on hosts of a machine's names"],
)
def test_what_a_plan_is_for_is_what_its_cluster_says_not_its_name(held, differences):
    plan = example_plan(cluster="1 x g4dn.12xlarge", hardware=held)
    assert list(_kind_differences(plan)) == differences
