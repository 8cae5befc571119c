"""Operators are measured on a mesh, and the database of measurements is read back."""

import pickle

import alpa
import jax
import numpy as np
import pytest
from alpa import mesh_profiling

from alpa_stock_jax.mesh_operators import measure_operator


def _measure(op_info):
    devices = jax.devices("cpu")
    return measure_operator(devices[0].client, devices, 0, len(devices), op_info)


def _groups():
    count = jax.device_count("cpu")
    return (tuple(range(count)),), tuple((rank,) for rank in range(count))


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_a_collective_takes_time_whatever_its_size(kind, dtype):
    for groups in _groups():
        for elements in (0, 1, 1 << 10):
            assert _measure((kind, (groups, dtype, elements))) > 0


def test_a_larger_product_takes_longer():
    assert 0 < _measure(("dot", (0, 0, 0, "f32"))) < _measure(("dot", (512, 512, 512, "f32")))


def test_an_unknown_operator_is_refused():
    with pytest.raises(NotImplementedError, match="fft"):
        _measure(("fft", ((), "f32", 1)))


def test_the_database_is_read_back(tmp_path):
    result = mesh_profiling.MeshProfilingResult()
    result.dot_cost_dict[((), "f32")] = [(0, np.float64(1e-6)), (2, 1e-5)]
    result.available_memory_per_device = 1000
    alpa.ProfilingResultDatabase({("default", (1, 2)): result}).save(tmp_path / "database.pkl")
    read_back = alpa.ProfilingResultDatabase()
    read_back.load(tmp_path / "database.pkl")
    found = read_back.query("default", (1, 2))
    assert found.dot_cost_dict == result.dot_cost_dict
    assert found.available_memory_per_device == 1000


def test_a_database_that_names_another_class_is_refused(tmp_path):
    path = tmp_path / "database.pkl"
    path.write_bytes(pickle.dumps({"default": jax.ShapeDtypeStruct}))
    with pytest.raises(pickle.UnpicklingError, match="ShapeDtypeStruct"):
        alpa.ProfilingResultDatabase().load(path)
