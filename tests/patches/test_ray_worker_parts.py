"""What a worker on CPU is made of, without Ray: its environment, its mover of checkpoints, meshes of single devices."""

from types import SimpleNamespace

import pytest

from alpa_stock_jax._ray_backend import MeshSeat, worker_environment
from alpa_stock_jax._ray_mover import Mover
from alpa_stock_jax.ray_launch import _seat


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
