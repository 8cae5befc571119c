"""Pipelines: profiles of stages that are read back or failed, and what goes from mesh to mesh."""

import pickle
import types

import numpy as np
import pytest
from alpa.device_mesh import DistributedArray, ReplicatedDistributedArray
from alpa.pipeline_parallel import stage_construction, stage_profiling
from ray.exceptions import RayActorError

from alpa_stock_jax.pipeline_moves import fetch_elsewhere
from alpa_stock_jax.pipeline_overlap import merge_sends, plan_sends
from alpa_stock_jax.pipeline_profile_cache import VariableNames, read_profile_results
from alpa_stock_jax.pipeline_profile_faults import StageNotCompiledError


def _profiles():
    module = stage_profiling.ModuleProfileResult(
        compute_cost=np.float64(0.25),
        peak_memory=8,
        temp_buffer_size=4,
        invar_names=("v0",),
        outvar_names=("v1",),
        invar_sizes=(np.int64(4),),
        outvar_sizes=(4,),
        donated_invars=(True,),
        acc_grad_invars_indices=(),
        acc_grad_outvars_indices=(0,),
        available_memory=100,
    )
    stage = stage_profiling.StageProfileResult(1, ["v2"], [np.int64(16)])
    stage.add_module_profile_result(0, module)
    return {(0, 0, 0, 0): stage}


def _job(**changes):
    fields = {
        "invar_names": ("v0",),
        "outvar_names": ("v1",),
        "invar_avals": (),
        "outvar_avals": (),
        "donated_invars": (True,),
        "acc_grad_invars_indices": (),
        "acc_grad_outvars_indices": (0,),
    }
    config = stage_profiling.ModuleProfileConfig(**(fields | changes))
    return [((0, 0, 0, 0), types.SimpleNamespace(n_modules=1, module_profile_configs=[config]), None)]


def test_what_numpy_saved_is_read_by_alpas_own_call(tmp_path):
    path = tmp_path / "profile-results.npy"
    np.save(path, _profiles())
    with path.open("rb") as file:
        found = stage_profiling.pickle.load(file)
    ((index, stage),) = found.items()
    assert index == (0, 0, 0, 0)
    assert stage.fully_profiled()
    assert stage.available_memory == 100
    assert stage.module_profile_results == _profiles()[index].module_profile_results


class _Harmful:
    def __reduce__(self):
        return print, ("a file has run code",)


@pytest.mark.parametrize("content", [_Harmful(), {(0,): _Harmful()}])
def test_a_file_that_names_another_class_is_refused(tmp_path, content, capsys):
    path = tmp_path / "profiles.npy"
    np.save(path, np.array(content, dtype=object))
    with path.open("rb") as file, pytest.raises(pickle.UnpicklingError, match="print"):
        read_profile_results(file)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x80\x02})q\x000" + 50 * b"h\x00h\x00\x86q\x000" + b"h\x00Ns.", id="a key that holds one twice"),
        pytest.param(b"\x80\x02}()q\x000" + 50 * b"h\x00h\x00\x86q\x000" + b"h\x00Nu.", id="keys"),
        pytest.param(b"\x80\x02})" + 1000 * b"\x85" + b"Ns.", id="a deep key"),
        pytest.param(b"\x80\x02K\x01r\x00\x00\x00\x08.", id="a number far up"),
        pytest.param(b"\x80\x05\x96" + b"\xff" * 7 + b"\x7f.", id="bytes of any number"),
    ],
)
def test_a_few_bytes_do_not_take_all_time_or_memory(tmp_path, content):
    path = tmp_path / "profiles.pkl"
    path.write_bytes(content)
    with path.open("rb") as file, pytest.raises(pickle.UnpicklingError, match=r"without an end|int instead of|no file"):
        read_profile_results(file)


def test_a_file_without_profiles_is_refused(tmp_path):
    path = tmp_path / "profiles.pkl"
    path.write_bytes(pickle.dumps([1, 2]))
    with path.open("rb") as file, pytest.raises(pickle.UnpicklingError, match="list"):
        read_profile_results(file)


def test_profiles_of_this_job_are_accepted_and_of_another_refused():
    check = stage_profiling.check_profile_results_consistent
    check(_job(), _profiles())
    check(_job(), {})
    with pytest.raises(AssertionError, match="invar_names"):
        check(_job(invar_names=("v7",)), _profiles())


def _pool_that_answers(answer):
    pool = stage_profiling.CompileWorkerPool.__new__(stage_profiling.CompileWorkerPool)
    pool.pool = types.SimpleNamespace(get_next_unordered=lambda timeout: answer)
    pool.is_shutdown = True
    return pool


def test_a_stage_that_was_not_compiled_is_an_error_that_the_driver_passes_over():
    assert _pool_that_answers((3, "output")).get_next_unordered() == (3, "output")
    with pytest.raises(RayActorError, match="stage 3") as caught:
        _pool_that_answers((3, None)).get_next_unordered()
    assert isinstance(caught.value, StageNotCompiledError)


def _stage(peak_memory):
    module = types.SimpleNamespace(peak_memory=peak_memory, available_memory=0)
    return types.SimpleNamespace(module_profile_results=[module, module], available_memory=0)


def test_a_failed_profile_allows_no_stage_after_it():
    *_, max_n_succ_stages = stage_profiling.get_merged_stages_memory_stats([_stage(np.inf)])
    assert max_n_succ_stages == -1
    _, peak, _, _, none = stage_profiling.get_merged_stages_memory_stats([_stage(np.inf)], inference_mode=True)
    assert peak == np.inf
    assert none is None


def test_a_search_can_follow_one_that_failed():
    mesh = types.SimpleNamespace(launched_physical_mesh_group=None)
    for _ in range(2):
        with pytest.raises(ValueError, match="Invalid pipeline stage option"):
            stage_construction.cluster_layers_and_slice_mesh(
                [], mesh, {}, [], [], 1, 1, [], (), "1f1b", None, "no option"
            )


class Array(DistributedArray):
    """An array that knows whether it was fetched."""

    def __init__(self, device_mesh, indices=()):
        self.device_mesh, self.indices, self.aval, self.fetched = device_mesh, indices, None, False

    def __del__(self):
        pass

    @property
    def _value(self):
        self.fetched = True
        return "copy"


def test_what_lies_elsewhere_is_fetched():
    meshes = [object(), object()]
    arguments = [Array(meshes[0]), Array(meshes[0]), Array(meshes[1]), 1.0]
    executable = _executable(meshes, [[0, 3], [1, 2, 3]], [[()] * 2, [()] * 3])
    assert fetch_elsewhere(executable, arguments) == arguments
    assert [one.fetched for one in arguments[:3]] == [False, True, False]


def test_what_lies_on_other_meshes_or_is_cut_otherwise_is_given_as_a_copy():
    meshes = [object() for _ in range(3)]
    arrays = [
        ReplicatedDistributedArray(meshes[:2], [Array(meshes[0], "rows"), Array(meshes[1], "columns")])
        for _ in range(3)
    ]
    executable = _executable(meshes, [[0, 1], [0, 1], [2]], [["rows", "rows"], ["columns", "rows"], ["rows"]])
    assert fetch_elsewhere(executable, arrays) == [arrays[0], "copy", "copy"]


def _executable(meshes, numbers, indices):
    return types.SimpleNamespace(mesh_group=meshes, mesh_arg_indices=numbers, input_shard_indices=indices)


def _sending(invars, outvars):
    specs = [f"{name} cut" for name in invars]
    return types.SimpleNamespace(invars=list(invars), outvars=list(outvars), input_sharding_specs=specs)


def test_a_variable_goes_once_to_each_mesh_that_reads_it():
    stages = [_sending("x", "ab"), _sending("a", "c"), _sending("abc", "d"), _sending("ac", "e")]
    assert plan_sends(stages, [0, 1, 1, 2], {"x"}) == [
        [(1, "a", "a cut"), (1, "b", "b cut"), (2, "a", "a cut")],
        [(2, "c", "c cut")],
        [],
        [],
    ]


def test_sends_to_one_mesh_in_a_row_are_one():
    sends = [(1, "a", "A"), (1, "b", "B"), (2, "a", "A"), (1, "c", "C")]
    assert merge_sends(sends, {"c": 0, "b": 1, "a": 2}) == [(1, ["c", "b", "a"], ["C", "B", "A"]), (2, ["a"], ["A"])]
    assert merge_sends([], {}) == []


def test_a_plain_pickle_is_read_too(tmp_path):
    path = tmp_path / "profiles.pkl"
    path.write_bytes(pickle.dumps(_profiles()))
    with path.open("rb") as file:
        assert list(read_profile_results(file)) == [(0, 0, 0, 0)]


def test_names_follow_the_first_occurrence():
    first, second, third = object(), object(), object()
    name = VariableNames([second, first, second])
    assert [name(first), name(second), name(third), name(third)] == ["v1", "v0", "v2", "v2"]


def test_the_last_profile_file_is_told(monkeypatch):
    monkeypatch.setattr(stage_profiling, "last_compute_cost_file_name", "profile-results-1.npy")
    assert stage_construction.get_last_dp_result()[0] == "profile-results-1.npy"
