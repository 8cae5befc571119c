"""Hooks go in and out of Alpa and leave it as it was; those that don't fit say so."""

import functools

import pytest
from alpa import api, device_mesh, parallel_method
from alpa.pipeline_parallel import compile_executable, stage_construction

import alpa_dejavu
from alpa_dejavu.alpa import HookError

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


def test_hooks_are_taken_out_whatever_happens(before):
    def interrupted():
        with alpa_dejavu.installed(*ALL):
            assert not set(what_is_there()) & set(before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert what_is_there() == before


def test_alpa_with_the_hook_searches_with_ours(before):
    cost = [[[[2.0]]]]
    with alpa_dejavu.installed("training_dp"):
        assert stage_construction.training_dp(1, 1, 4, [(1, 1)], 1, cost, [[[[0]]]]) == (8.0, [((0, 1), 0, 0)])


def test_a_function_of_another_shape_is_refused_and_left_alone(before, monkeypatch):
    def other(layers, mesh):
        raise NotImplementedError

    monkeypatch.setattr(compile_executable, "cluster_layers_and_slice_mesh", other)
    with pytest.raises(HookError, match=r"compile_executable.cluster_layers_and_slice_mesh takes \('layers', 'mesh'\)"):
        alpa_dejavu.install()
    assert stage_construction.cluster_layers_and_slice_mesh is before[0]
    monkeypatch.setattr(compile_executable, "cluster_layers_and_slice_mesh", None)
    with pytest.raises(HookError, match="takes None"):
        alpa_dejavu.install("stages")


def test_unknown_hooks_are_named(before):
    with pytest.raises(ValueError, match="'stages', 'submeshes', 'checks'"):
        alpa_dejavu.install("everything")


def test_what_somebody_else_put_over_a_hook_stays(before):
    alpa_dejavu.install("training_dp")

    @functools.wraps(stage_construction.training_dp)
    def theirs(*args):
        raise NotImplementedError

    ours = stage_construction.training_dp
    stage_construction.training_dp = theirs
    alpa_dejavu.install("training_dp")
    alpa_dejavu.uninstall()
    assert stage_construction.training_dp is theirs
    stage_construction.training_dp = ours
