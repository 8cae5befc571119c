"""The cache of stage profiles is read back whole, compared with the job, and runs nothing that a file names."""

import pickle
import types

import numpy as np
import pytest
from alpa.pipeline_parallel import stage_profiling

from alpa_stock_jax.pipeline_profile_cache import read_profile_results


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
