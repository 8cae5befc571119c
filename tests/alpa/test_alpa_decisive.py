"""`DejavuStageOption(profile="decisive")` and "auto" inside Alpa: which stages are measured, and what becomes of it.

Alpa makes each stage's program; what would run it is a stand-in, but for two tests.
"""

import contextlib
import dataclasses
import re
from types import SimpleNamespace

import alpa
import jax.numpy as jnp
import pytest
from alpa import device_mesh
from alpa.device_mesh import VirtualPhysicalMesh
from jax._src.lib import xla_extension as xe

import alpa_dejavu
import unlike
from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa import _stages
from alpa_dejavu.alpa._stage_runners import AlpaWorkers, CpuProcess, StageProgram, StageRunner, Taken
from alpa_dejavu.planning import Decisive, Searched
from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_dejavu.testing import example_cluster
from planned_alpa import PlannedError, stopped_after_planning
from train_steps import predict_in_stages
from trained_alpa import check_trains_as_one_device

LAYERS, HIDDEN, BATCH = 4, 256, 64
PEAK_BYTES = 2e6
PARTITION = """HloModule rows
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[512,512] parameter(0)
  y = f32[512,512] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  z = f32[512,512] all-reduce(y), channel_id=1, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
  ROOT t = (f32[512,512]) tuple(z) }"""
NOTE = re.compile(r"(\d+) of (\d+) candidate stages were measured in [\d.]+ m?s of 60 s \((\d+) stages were offered\)")


@pytest.fixture
def _stops_after_planning(monkeypatch):
    yield from stopped_after_planning(monkeypatch)


class Runner(StageRunner):
    """All stages take a tenth of a second, and as much memory; some can't be run."""

    def __init__(self):
        self.asked, self.closed, self.failing = [], 0, False

    def run(self, programs, shape):
        self.asked.append((programs, shape))
        if self.failing:
            raise RuntimeError("out of memory\nat an address")
        return [Taken(0.05, PEAK_BYTES + n) for n in range(len(programs))]

    def close(self):
        self.closed += 1


@pytest.fixture
def runner(monkeypatch):
    found = Runner()
    monkeypatch.setattr(_stages, "_runner", lambda mesh, cluster: found)
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


def never():
    return DejavuStageOption(profile="never", cluster=slow(4))


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
def test_what_decides_is_measured_and_no_more(runner, caplog):
    with caplog.at_level("INFO", "alpa_dejavu"):
        plan = planned(decisive())
    measured, seen, offered = map(int, NOTE.match(plan.notes[0]).groups())
    assert 0 < measured == len(runner.asked) <= seen < offered
    assert runner.closed == 1
    assert plan.notes[0] in caplog.text
    assert plan.notes[1].startswith(f"{measured} of their peaks of memory were measured: ")
    own = [stage.memory_bytes for stage in plan.stages if stage.activation_bytes == 0 or len(plan.stages) == 1]
    assert all(num_bytes == pytest.approx(PEAK_BYTES + 1) for num_bytes in own), "what is trained has no optimizer"
    assert plan.confidence.summary in caplog.text
    assert "measuring" in plan.planning_s
    for programs, (hosts, devices) in runner.asked:
        assert len(programs) == 2, "forward and backward"
        assert all(program.stage_plan.logical_mesh_shape[0] >= 1 for program in programs)
        shape = programs[0].stage_plan.logical_mesh_shape
        assert shape[0] * shape[1] == hosts * devices


@pytest.mark.usefixtures("_stops_after_planning")
def test_stages_that_fail_are_said_and_planning_goes_on(runner, caplog):
    runner.failing = True
    plan = planned(decisive())
    assert "couldn't be measured" in plan.notes[0]
    assert "RuntimeError: out of memory" in caplog.text
    assert "at an address" not in caplog.text
    assert runner.closed == len(runner.asked) + 1
    assert {stage.layers for stage in plan.stages} == {stage.layers for stage in planned(never()).stages}


@pytest.mark.usefixtures("_stops_after_planning")
def test_by_default_nothing_is_measured_where_no_devices_are_connected_or_hosts_are_unlike(runner, monkeypatch):
    assert planned(DejavuStageOption(cluster=slow(4))).confidence is not None
    assert planned(decisive(budget_s=0.0)).notes[0].startswith("0 of ")
    assert runner.asked == []
    info = {"NodeManagerAddress": "10.0.0.0"}
    mesh, cluster = VirtualPhysicalMesh([0], [info], 4), slow(4)
    monkeypatch.setattr(device_mesh, "global_cluster", SimpleNamespace(host_info=[info]))
    bench = SimpleNamespace(measured=None)
    assert isinstance(_stages._chooser(DejavuStageOption(), bench, mesh, cluster, 0.0), Decisive)
    assert isinstance(_stages._chooser(DejavuStageOption(), bench, mesh, unlike.two_and_two(), 0.0), Searched)
    assert isinstance(_stages._chooser(never(), bench, mesh, cluster, 0.0), Searched)


@pytest.mark.usefixtures("_stops_after_planning")
@pytest.mark.parametrize("sure", [0.0, 1.1], ids=["sure", "unsure"])
def test_by_default_stages_are_measured_where_the_plan_is_not_sure(runner, monkeypatch, sure):
    monkeypatch.setattr(_stages, "_connected", lambda mesh: True)
    monkeypatch.setattr(_stages, "_SURE", sure)
    plan = planned(DejavuStageOption(cluster=slow(4), budget_s=1e6))
    if sure:
        measured, offered = map(int, re.match(r"(\d+) of .*\((\d+) stages", plan.notes[0]).groups())
        assert measured == len(runner.asked) > 0
        # However fast they are, a twentieth of all may be measured.
        assert measured <= 1 + offered / 20
    else:
        assert runner.asked == []
        assert plan.stages == planned(never()).stages


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"profile": "always"}, ValueError, "profile is 'always'; choose one of 'auto', 'never', 'decisive', 'playo"),
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


def test_a_process_runs_stages_on_cpu_devices_and_outlives_what_cannot_run(monkeypatch):
    rows = HloModuleProto.FromString(xe.hlo_module_from_text(PARTITION).as_serialized_hlo_module_proto())
    program, broken = (
        StageProgram(SimpleNamespace(hlo=SimpleNamespace(get_hlo_proto=lambda module=module: module)), None, None)
        for module in (rows.SerializeToString(), b"no module")
    )
    with contextlib.closing(CpuProcess(2, cores=2, dispatch_s=1e-3)) as runner:
        (found,) = runner.run([program], (1, 2))
        assert 0 < found.seconds < 10
        assert found.peak_bytes >= 512 * 512 * 4
        with pytest.raises(RuntimeError, match="DecodeError"):
            runner.run([broken], (1, 1))
        process = runner._process
        process.kill()
        process.wait()
        with pytest.raises(RuntimeError, match="can't be asked"):
            runner.run([program], (1, 2))
        assert runner._process is None
        assert runner.run([program], (1, 2))[0].seconds > 0, "another one is started"
        process = runner._process
    assert process.poll() is not None


@pytest.mark.ray
@pytest.mark.parametrize("workers", [
    pytest.param(False, id="in a process"),
    pytest.param(True, id="in Alpa's workers", marks=pytest.mark.slow),
])  # fmt: skip
def test_stages_are_measured_on_a_cluster_and_the_plan_trains(tmp_path, monkeypatch, workers):
    monkeypatch.chdir(tmp_path)
    if workers:
        monkeypatch.setattr(_stages, "_runner", lambda mesh, cluster: AlpaWorkers(mesh))
    option = decisive(2, budget_s=120.0)
    check_trains_as_one_device(option)
    measured = int(option.last_plan.notes[0].split()[0])
    assert "couldn't" not in option.last_plan.notes[0]
    assert measured > 0
