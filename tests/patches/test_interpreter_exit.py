"""A script that ends with executables still alive says nothing about it."""

import gc
import subprocess
import sys
from types import SimpleNamespace

import pytest
import ray
from alpa.data_loader import MeshDriverDataLoader
from alpa.mesh_executable import NormalMeshDriverExecutable
from alpa.pipeline_parallel.pipeshard_executable import PipeshardDriverExecutable
from alpa.pipeline_parallel.stage_profiling import CompileWorkerPool

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
