"""Alpa on a Ray cluster of two hosts with two CPU devices each."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import alpa
import jax.numpy as jnp
import numpy as np
import pytest
import ray
from alpa.device_mesh import DistributedArray, RemoteArrayRef, get_global_cluster, get_global_virtual_physical_mesh
from alpa.testing import assert_allclose, get_mlp_train_state_and_step

from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.alpa.ray_cluster import host_names
from alpa_dejavu.problem import Plan, StagePlan, Submesh

pytestmark = pytest.mark.ray

# A test run in the background ignores Ctrl-C, and so would the programs that it starts.
_TRAINING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import alpa, os, ray
from alpa.testing import get_mlp_train_state_and_step

alpa.init("ray")
state, batch, step = get_mlp_train_state_and_step(batch_size=8, hidden_size=8)
step = alpa.parallelize(step, method=alpa.ShardParallel())
state, loss = step(state, batch)
workers = step.get_last_executable().physical_mesh.workers
print(*ray.get([worker.__ray_call__.remote(lambda self: os.getpid()) for worker in workers]), flush=True)
while True:
    state, loss = step(state, batch)
    float(loss)
"""


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    with local_cluster(devices=2, hosts=2):
        yield


@pytest.fixture(autouse=True)
def _shut_down():
    yield
    alpa.shutdown()


def _is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_for_the_end_of(processes):
    """Fails if they are still there after ten minutes, on however busy a machine."""
    for _ in range(6000):
        if not any(map(_is_alive, processes)):
            return
        time.sleep(0.1)
    pytest.fail(f"{list(filter(_is_alive, processes))} are still there")


def _interrupted(job):
    """Returns the exit code of an interrupted job; Python drops an interrupt that comes in a callback of the garbage
    collector, where JAX has one, so it is sent again as a person would.
    """
    for _ in range(10):
        job.send_signal(signal.SIGINT)
        try:
            return job.wait(60)
        except subprocess.TimeoutExpired:
            continue
    pytest.fail("the job goes on after ten interrupts, a minute apart")


def _processes(workers):
    return ray.get([worker.__ray_call__.remote(lambda self: os.getpid()) for worker in workers])


def _train_for_ever(step, state, batch):
    while True:
        float(step(state, batch)[1])


def _train_step():
    return get_mlp_train_state_and_step(batch_size=16, hidden_size=16, add_manual_pipeline_marker=True)


def _two_stages():
    stages = alpa.ManualStageOption([[0], [1]], [(1, 2), (1, 2)], [(1, 2), (1, 2)], [{}, {}])
    return alpa.PipeshardParallel(num_micro_batches=2, layer_option="manual", stage_option=stages)


def test_a_mesh_that_spans_two_hosts_computes_as_one_device():
    alpa.init("ray")
    state, batch, train_step = _train_step()
    expected, expected_loss = train_step(state, batch)
    parallel_step = alpa.parallelize(train_step, method=alpa.ShardParallel(), donate_argnums=())
    actual, loss = parallel_step(state, batch)
    mesh = parallel_step.get_last_executable().physical_mesh
    assert mesh.shape == (2, 2)
    assert len(set(mesh.node_ips)) == 2
    assert_allclose(expected.params, actual.params, 1e-5, 1e-6)
    assert_allclose(expected_loss, loss, 1e-5, 1e-6)
    assert mesh.get_memory_allocated() > 0
    assert mesh.get_max_memory_allocated() >= mesh.get_memory_allocated()
    assert mesh.get_available_memory() > 0


def test_meshes_of_another_session_free_nothing():
    alpa.init("ray")
    virtual = get_global_virtual_physical_mesh()
    mesh = virtual.slice_2d([0], [[0]]).get_physical_mesh()
    asked, workers = [], mesh.workers
    mesh.workers = [SimpleNamespace(delete_executable=SimpleNamespace(remote=asked.append))]
    mesh.delete_remote_executable(1)
    mesh.session = ("another", "01000000")
    mesh.delete_remote_executable(2)
    mesh.workers = workers
    mesh.shutdown()
    assert asked == [1]


@pytest.mark.slow
def test_stages_on_two_hosts_and_a_checkpoint_for_another_plan(tmp_path):
    alpa.init("ray")
    state, batch, train_step = _train_step()
    expected, _ = train_step(state, batch)
    parallel_step = alpa.parallelize(train_step, method=_two_stages(), donate_argnums=())
    actual, _ = parallel_step(state, batch)
    meshes = parallel_step.get_last_executable().mesh_group
    assert {mesh.node_ips[0] for mesh in meshes} == set(get_global_cluster().host_ips)
    assert_allclose(expected.params, actual.params, 1e-5, 1e-6)
    alpa.save_checkpoint(str(tmp_path), actual, 1)
    expected, _ = train_step(expected, batch)

    alpa.shutdown()
    alpa.init("ray")
    other_step = alpa.parallelize(train_step, method=alpa.ShardParallel(), donate_argnums=())
    placements, _ = other_step.get_executable(state, batch).get_input_placement_specs()
    restored = alpa.restore_checkpoint(str(tmp_path), 1, placements)
    continued, _ = other_step(restored, batch)
    assert_allclose(expected.params, continued.params, 1e-5, 1e-6)


def test_only_free_devices_are_taken():
    holder = ray.util.placement_group([{"GPU": 1}])
    ray.get(holder.ready())
    try:
        alpa.init("ray")
        assert sorted(get_global_cluster().host_num_devices) == [1, 2]
        assert get_global_virtual_physical_mesh().num_devices == 2
        alpa.shutdown()
        with pytest.raises(RuntimeError, match="free devices: ask for fewer"):
            alpa.init("ray", num_nodes=2, num_devices_per_node=2)
        alpa.init("ray", num_nodes=2, num_devices_per_node=1)
        assert get_global_cluster().host_num_devices == [1, 1]
    finally:
        ray.util.remove_placement_group(holder)


def _stage(layer, host, devices):
    return StagePlan((layer, layer), Submesh(1, devices), (1, devices), (host,), memory_limit_bytes=1e9)


def test_a_plan_puts_unlike_stages_on_hosts_with_unlike_numbers_of_devices():
    holder = ray.util.placement_group([{"GPU": 1}])
    ray.get(holder.ready())
    try:
        alpa.init("ray")
        counts = get_global_cluster().host_num_devices
        hosts = host_names(get_global_virtual_physical_mesh())
        stages = tuple(_stage(layer, hosts[counts.index(size)], size) for layer, size in enumerate((1, 2)))
        plan = Plan(
            stages=stages, step_s=0.0, num_micro_batches=2, schedule="1f1b", cluster="ours", planning_s={}, batch=16
        )
        state, batch, train_step = _train_step()
        method = alpa.PipeshardParallel(
            num_micro_batches=2, layer_option="manual", stage_option=DejavuStageOption(plan=plan)
        )
        parallel_step = alpa.parallelize(train_step, method=method, donate_argnums=())
        expected, _ = train_step(state, batch)
        actual, _ = parallel_step(state, batch)
        meshes = parallel_step.get_last_executable().mesh_group
        assert [mesh.shape for mesh in meshes] == [(1, 1), (1, 2)]
        assert [mesh.host_ids for mesh in meshes] == [[counts.index(1)], [counts.index(2)]]
        assert_allclose(expected.params, actual.params, 1e-5, 1e-6)
        alpa.shutdown()
    finally:
        ray.util.remove_placement_group(holder)


def test_a_killed_worker_ends_the_others_and_is_told():
    alpa.init("ray")
    state, batch, train_step = _train_step()
    parallel_step = alpa.parallelize(train_step, method=_two_stages(), donate_argnums=())
    float(parallel_step(state, batch)[1])
    meshes = parallel_step.get_last_executable().mesh_group
    processes = _processes([worker for mesh in meshes for worker in mesh.workers])
    os.kill(processes[0], signal.SIGKILL)
    with pytest.raises(RuntimeError, match="a worker has died"):
        _train_for_ever(parallel_step, state, batch)
    alpa.shutdown()
    _wait_for_the_end_of(processes)


def test_a_failing_executable_is_told_with_its_reason():
    alpa.init("ray", num_nodes=1, num_devices_per_node=1)
    mesh = get_global_cluster().get_physical_mesh()
    mesh.workers[0].run_executable.remote(12345)
    with pytest.raises(RuntimeError, match=r"running an executable failed on host 0.*KeyError: 12345"):
        mesh.get_remote_buffers([RemoteArrayRef(mesh, 6789)], batching=True)
    mesh.shutdown()


def test_an_interrupted_job_leaves_no_process():
    address = {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    with subprocess.Popen(
        [sys.executable, "-c", _TRAINING], stdout=subprocess.PIPE, text=True, env={**os.environ, **address}
    ) as job:
        processes = [int(word) for word in job.stdout.readline().split()]
        assert len(processes) == 4
        try:
            assert _interrupted(job) != 0
        finally:
            job.kill()
    _wait_for_the_end_of(processes)


def test_arrays_are_resharded_by_saving_and_loading(tmp_path):
    alpa.init("ray", num_nodes=2, num_devices_per_node=1)
    mesh = get_global_cluster().get_physical_mesh()
    logical = mesh.get_logical_mesh()
    array = jnp.arange(16.0, dtype=jnp.bfloat16).reshape(4, 4)
    rows = logical.make_tile_spec(array, [0], [0])
    columns = logical.make_tile_spec(array, [1], [0])
    (placed,) = mesh.shard_args_to_arrays([array.aval], [rows.indices(array.shape).flatten()], [rows], [array])
    placed.save(str(tmp_path))
    loaded = DistributedArray.load(str(tmp_path), array.aval, mesh, columns)
    np.testing.assert_array_equal(np.asarray(loaded, np.float32), np.asarray(array, np.float32))
    mesh.shutdown()


def test_hosts_on_one_machine_are_told_apart():
    alpa.init("ray")
    cluster = get_global_cluster()
    assert len(set(cluster.host_ips)) == 2
    assert cluster.host_num_devices == [2, 2]
