"""Hooks go in and out of Alpa and leave it as it was; those that don't fit say so."""
import pytest
from alpa import api, device_mesh, parallel_method
from alpa.pipeline_parallel import compile_executable, stage_construction

import alpa_dejavu

PLACES = [
    (stage_construction, "cluster_layers_and_slice_mesh"),
    (compile_executable, "cluster_layers_and_slice_mesh"),
    (compile_executable, "compile_pipeshard_executable"),
    (parallel_method, "compile_pipeshard_executable"),
    (stage_construction, "get_sliced_virtual_submeshes"),
    (stage_construction, "get_compute_cost"),
    (stage_construction, "training_dp"),
    (stage_construction, "inference_dp"),
    (device_mesh, "shutdown_global_cluster"),
    (api, "shutdown_global_cluster"),
]


ALL = ("stages", "submeshes", "checks", "get_compute_cost", "training_dp", "inference_dp", "shutdown")


def what_is_there():
    return [getattr(module, name) for module, name in PLACES]


@pytest.fixture
def before():
    alpa_dejavu.uninstall()
    yield what_is_there()
    alpa_dejavu.uninstall()


def test_installing_twice_is_installing_once(before):
    alpa_dejavu.install(*ALL)
    once = what_is_there()
    alpa_dejavu.install(*ALL)
    assert what_is_there() == once
    alpa_dejavu.uninstall()
    assert what_is_there() == before


def test_making_an_option_installs_what_it_needs(before):
    alpa_dejavu.DejavuStageOption()
    there = what_is_there()
    assert not set(there[:5]) & set(before)
    assert there[5:] == before[5:]
