"""The part of a cluster that Alpa takes, what its workers are made of, and what is left at the end."""

import gc
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
from alpa import device_mesh
from alpa.data_loader import MeshDriverDataLoader
from alpa.mesh_executable import NormalMeshDriverExecutable
from alpa.pipeline_parallel.pipeshard_executable import PipeshardDriverExecutable
from alpa.pipeline_parallel.stage_profiling import CompileWorkerPool
from hypothesis import given
from hypothesis import strategies as st

from alpa_stock_jax import ray_session
from alpa_stock_jax._ray_backend import MeshSeat, worker_environment
from alpa_stock_jax._ray_mover import Mover
from alpa_stock_jax.ray_cluster import Share, choose_share, taken_devices
from alpa_stock_jax.ray_launch import _seat


@pytest.mark.parametrize(
    ("free", "nodes", "per_node", "share"),
    [
        ([8], None, None, Share(1, 8)),
        ([4, 4], None, None, Share(2, 4)),
        ([4, 1], None, None, Share(1, 4)),
        ([4, 3, 3], None, None, Share(3, 3)),
        ([4, 3], 2, None, Share(2, 3)),
        ([4, 4, 4], 2, None, Share(2, 4)),
        ([4, 3], None, 2, Share(2, 2)),
        ([4, 3], 1, 4, Share(1, 4)),
    ],
)
def test_the_largest_mesh_that_was_asked_for(free, nodes, per_node, share):
    assert choose_share(free, nodes, per_node) == share


@pytest.mark.parametrize(
    ("free", "nodes", "per_node"), [([], None, None), ([0, 0], None, None), ([4], 2, None), ([3], 1, 4)]
)
def test_fewer_devices_than_asked_for_are_an_error(free, nodes, per_node):
    with pytest.raises(RuntimeError, match=r"have \[.*\] free devices: ask for fewer"):
        choose_share(free, nodes, per_node)


@given(st.lists(st.integers(0, 16), min_size=1, max_size=6).filter(any))
def test_a_share_fits_and_none_is_larger(free):
    share = choose_share(free)
    assert sum(devices >= share.devices_per_host for devices in free) >= share.hosts
    sizes = [size * sum(devices >= size for devices in free) for size in range(1, 17)]
    assert share.hosts * share.devices_per_host == max(sizes)


@given(st.lists(st.integers(0, 16), min_size=1, max_size=6).filter(any))
def test_every_free_device_is_taken_unless_a_mesh_is_asked_for(free):
    assert taken_devices(free) == [devices for devices in free if devices]
    share = choose_share(free, num_nodes=1)
    assert taken_devices(free, num_nodes=1) == [share.devices_per_host] == [max(free)]


@pytest.mark.parametrize("name", ["get_virtual_physical_mesh", "get_physical_mesh"])
def test_a_mesh_of_unlike_hosts_is_the_largest_that_is_even_and_knows_all(monkeypatch, name):
    made = []

    def mesh(**given):
        made.append(given)
        return SimpleNamespace(**given)

    for kind in ("VirtualPhysicalMesh", "DistributedPhysicalDeviceMesh"):
        monkeypatch.setattr(device_mesh, kind, mesh)
    infos = [{"host": n} for n in range(3)]
    cluster = SimpleNamespace(host_info=infos, host_num_devices=[1, 4, 2], namespace=None)
    whole = getattr(device_mesh.DeviceCluster, name)(cluster)
    assert (whole.host_ids, whole.num_devices_per_host) == ([1], 4)
    assert whole.every_host == ((infos[0], 1), (infos[1], 4), (infos[2], 2))
    part = getattr(device_mesh.DeviceCluster, name)(cluster, [1, 2], 2)
    assert (part.host_ids, part.num_devices_per_host) == ([1, 2], 2)
    assert not hasattr(part, "every_host")


def test_a_worker_starts_with_its_own_number_of_devices():
    seat = MeshSeat(process=0, processes=1, devices=2, service="", hostname="", threads=3)
    flags = "--xla_force_host_platform_device_count=8 --xla_gpu_autotune_level=4 --xla_cpu_enable_fast_math=false"
    environment = worker_environment(seat, {"XLA_FLAGS": flags, "HOME": "/", "MALLOC_TRIM_THRESHOLD_": "5"})
    assert environment == {
        "ALPA_IS_WORKER": "True",
        "ALPA_PEER_TIMEOUT_S": "600.0",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_cpu_enable_fast_math=false --xla_force_host_platform_device_count=2",
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": "5",
        "NPROC": "3",
    }


def test_a_checkpoint_is_moved_file_by_file(tmp_path):
    cache, target = tmp_path / "cache", tmp_path / "deep" / "target"
    cache.mkdir()
    for name in ("metadata_0", "shard_0.0"):
        (cache / name).write_text(name, encoding="ascii")
    mover = Mover()
    mover.move(str(cache), str(target))
    mover.wait()
    assert sorted(path.name for path in target.iterdir()) == ["metadata_0", "shard_0.0"]
    assert not list(cache.iterdir())


def test_a_failed_move_is_told(tmp_path):
    mover = Mover()
    mover.move(str(tmp_path / "nowhere"), str(tmp_path / "target"))
    with pytest.raises(FileNotFoundError):
        mover.wait()
    mover.wait()  # told once


def test_a_worker_has_no_more_threads_than_cores_that_may_be_used(monkeypatch):
    # As a quota of a control group does, or an affinity.
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    host = {"Resources": {"GPU": 1, "memory": 8}}
    seat, _ = _seat(SimpleNamespace(host_info=[host], num_hosts=1, num_devices_per_host=1), 0, "", "127.0.0.1")
    assert seat.threads == 1


SCRIPT = """
import jax, numpy as np, alpa
from alpa.device_mesh import LocalPhysicalDeviceMesh
mesh = LocalPhysicalDeviceMesh(jax.devices()[:2])
double = alpa.parallelize(lambda x: x * 2, method=alpa.ShardParallel(devices=mesh), batch_argnums=())
print(np.asarray(double(np.ones(4, np.float32))).sum())
"""


def test_the_end_of_a_script_is_silent():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT], check=True, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.split() == ["8.0"]
    assert "Exception ignored" not in done.stderr


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [NormalMeshDriverExecutable, PipeshardDriverExecutable])
def test_an_unfinished_executable_is_dropped_in_silence(kind):
    executable = kind.__new__(kind)
    executable.mesh_group = [object()]
    del executable
    gc.collect()


class _Asked:
    """Stands for an actor or a mesh of a Ray that has stopped; nobody may ask it."""

    def __getattr__(self, name):
        raise AssertionError(f"asked for {name}")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("kind", "attributes"), [
    (CompileWorkerPool, {"actors": [_Asked()], "is_shutdown": False}),
    (MeshDriverDataLoader, {"physical_mesh": SimpleNamespace(num_hosts=1, workers=[_Asked()]), "uuid": 0}),
])  # fmt: skip
def test_what_outlives_ray_asks_it_nothing(kind, attributes):
    left = kind.__new__(kind)
    vars(left).update(attributes)
    del left
    gc.collect()
    assert not ray.is_initialized()


def test_all_meshes_end_and_free_nothing_later_where_a_group_of_workers_fails(monkeypatch):
    """Else an executable of theirs would ask for them when it is collected, in another session of Ray."""
    def fail():
        raise RuntimeError("a worker of the group is gone")

    ended = []
    meshes = [SimpleNamespace(shutdown=lambda n=n: ended.append(n), session=("here", "1")) for n in range(2)]
    group = SimpleNamespace(meshes=meshes, destroy_collective_groups=fail)
    virtual = SimpleNamespace(launched_physical_mesh_group=group)
    monkeypatch.setattr(device_mesh, "global_virtual_physical_mesh", virtual)
    monkeypatch.setattr(ray_session.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_session, "session", lambda: ("here", "1"))
    monkeypatch.setattr(device_mesh, "update_jax_platform", lambda platform: ended.append("platform"))
    with pytest.raises(RuntimeError, match="of the group is gone"):
        device_mesh.shutdown_global_cluster()
    assert ended == [1, 0, "platform"]
