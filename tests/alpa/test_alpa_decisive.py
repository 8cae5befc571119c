"""`DejavuStageOption(profile="decisive")` inside Alpa: what is handed to its profiling workers, and what becomes of it.

Alpa makes each stage's program; the workers that would compile and run it are a stand-in, but for one test on Ray.
"""

import dataclasses
import re
from types import SimpleNamespace

import alpa
import jax.numpy as jnp
import pytest
from alpa.device_mesh import VirtualPhysicalMesh
from alpa.pipeline_parallel import stage_profiling

import alpa_dejavu
from alpa_dejavu import DejavuStageOption
from alpa_dejavu.testing import example_cluster
from planned_alpa import PlannedError, stopped_after_planning
from train_steps import predict_in_stages
from trained_alpa import check_trains_as_one_device

LAYERS, HIDDEN, BATCH = 4, 256, 64
PEAK_BYTES, OPTIMIZER_BYTES = 2e6, 3e5
NOTE = re.compile(r"(\d+) of (\d+) candidate stages were measured in [\d.]+ m?s of 60 s \((\d+) stages were offered\)")


@pytest.fixture
def _stops_after_planning(monkeypatch):
    yield from stopped_after_planning(monkeypatch)


@pytest.fixture
def asked(monkeypatch):
    """The stages that would be profiled, each with its meshes; all take a tenth of a second, and as much memory."""
    found = []

    def profiled(stages, meshes, num_micro_batches, default_as_option, auto_stage_option, profile_results):
        ((index, config, (logical_mesh, options)),) = stages
        found.append((index, config, meshes, logical_mesh, options))
        result = stage_profiling.StageProfileResult(config.n_modules, ("m", "v"), (OPTIMIZER_BYTES / 2,) * 2)
        for module in range(config.n_modules):
            found_there = SimpleNamespace(compute_cost=0.05, available_memory=1.0, peak_memory=PEAK_BYTES + module)
            result.add_module_profile_result(module, found_there)
        return {**profile_results, index: result}

    monkeypatch.setattr(stage_profiling, "distributed_profile_on_mesh", profiled)
    return found


def train_step(weights, batch):
    def loss(weights):
        return jnp.mean(predict_in_stages(weights, batch["x"]) ** 2)

    gradients = alpa.grad(loss)(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)]


def slow(devices):
    """A cluster on which computing decides: a step of what is trained here takes a second."""
    cluster = example_cluster(1, devices)
    device = dataclasses.replace(cluster.hosts[0].device, flop_per_s={"float32": 1e9}, vector_flop_per_s=1e9)
    return dataclasses.replace(cluster, hosts=(dataclasses.replace(cluster.hosts[0], device=device),))


def decisive(devices=4, **fields):
    return DejavuStageOption(profile="decisive", cluster=slow(devices), **fields)


def planned(option):
    mesh = VirtualPhysicalMesh([0], [{"NodeManagerAddress": "10.0.0.0", "Resources": {}}], 4)
    method = alpa.PipeshardParallel(
        devices=mesh, num_micro_batches=2, layer_option=alpa.ManualLayerOption(), stage_option=option
    )
    weights = [jnp.ones((HIDDEN, HIDDEN)) for _ in range(LAYERS)]
    with pytest.raises(PlannedError):
        alpa.parallelize(train_step, method=method, donate_argnums=())(weights, {"x": jnp.ones((BATCH, HIDDEN))})
    return option.last_plan


@pytest.mark.usefixtures("_stops_after_planning")
def test_what_decides_is_handed_to_alpas_workers_and_no_more(asked, caplog):
    with caplog.at_level("INFO", "alpa_dejavu"):
        plan = planned(decisive())
    measured, seen, offered = map(int, NOTE.match(plan.notes[0]).groups())
    assert 0 < measured == len(asked) <= seen < offered
    assert plan.notes[0] in caplog.text
    assert plan.notes[1].startswith(f"{measured} of their peaks of memory were measured: ")
    own = [stage.memory_bytes for stage in plan.stages if stage.activation_bytes == 0 or len(plan.stages) == 1]
    assert all(num_bytes == pytest.approx(PEAK_BYTES + 1 + OPTIMIZER_BYTES) for num_bytes in own)
    assert plan.confidence.summary in caplog.text
    assert "measuring" in plan.planning_s
    for (first, last, _, _), config, meshes, logical_mesh, options in asked:
        assert config.n_modules == 2, "forward and backward"
        assert len(config.module_profile_configs) == 2
        assert config.compile_config.names[0].startswith(f"stage_{first}_{last}")
        assert len(meshes) == 1
        assert logical_mesh.num_devices == meshes[0].num_devices
        assert set(options) <= {"force_batch_dim_to_mesh_dim"}


@pytest.mark.usefixtures("_stops_after_planning")
def test_by_default_and_without_a_budget_nothing_is_profiled(asked):
    assert planned(DejavuStageOption()).confidence is not None
    assert planned(decisive(budget_s=0.0)).notes[0].startswith("0 of ")
    assert asked == []


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"profile": "always"}, ValueError, "profile is 'always'; choose one of 'never', 'decisive'"),
        ({"budget_s": -1.0}, ValueError, "budget_s is -1.0, but must be a finite number of seconds"),
        ({"risk": 0.7}, ValueError, "must be above 0 and below 0.5"),
        ({"memory_margin": 1.0}, ValueError, "memory_margin is 1.0, but must be at least 0 and below 1"),
        ({"memory": 0.1}, TypeError, "give MemoryResiduals, or None"),
    ],
)
def test_what_is_wrong_is_named(fields, error, said):
    with pytest.raises(error, match=said):
        DejavuStageOption(**fields)
    alpa_dejavu.uninstall()


@pytest.mark.ray
@pytest.mark.slow
def test_stages_are_measured_on_a_cluster_and_the_plan_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    option = decisive(2, budget_s=120.0)
    check_trains_as_one_device(option)
    measured = int(option.last_plan.notes[0].split()[0])
    assert "couldn't" not in option.last_plan.notes[0]
    assert measured > 0
