"""A local mesh: arguments are cut onto it, results put together, operators measured, and memory is counted."""

import gc
import pickle

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa import mesh_profiling
from alpa.device_mesh import LocalPhysicalDeviceMesh
from jax._src.sharding_specs import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec, spec_to_indices
from jax.interpreters import pxla

from alpa_stock_jax._registry import apply_before
from alpa_stock_jax.devices import note_execution
from alpa_stock_jax.local_mesh import shard_argument
from alpa_stock_jax.mesh_operators import measure_operator
from alpa_stock_jax.sharded_array import ShardedDeviceArray, make_sharded_array


@pytest.fixture(scope="module")
def mesh():
    return LocalPhysicalDeviceMesh(jax.devices()[:4])


@pytest.fixture
def host():
    return np.arange(32, dtype=np.float32).reshape(8, 4)


@pytest.fixture
def spec(mesh, host):
    return mesh.get_logical_mesh((2, 2)).make_tile_spec(host, [0, 1], [0, 1])


def _cut(mesh, spec, argument, donated=False, batch=False, micro_batches=None):
    indices = pxla.spec_to_indices(np.shape(argument), spec)
    (pieces,) = mesh.shard_args_to_bufs([indices], [donated], [batch], micro_batches, [argument])
    return pieces


def _join(mesh, spec, host, pieces):
    (array,) = mesh.get_outputs_handler([jax.core.get_aval(host)], [spec])([pieces])
    return array


@pytest.mark.parametrize("make", [np.asarray, jax.numpy.asarray, lambda x: jax.device_put(x, jax.devices()[3])])
def test_what_is_cut_can_be_put_together(mesh, spec, host, make):
    pieces = _cut(mesh, spec, make(host))
    assert [piece.shape for piece in pieces] == [(4, 2)] * 4
    assert [next(iter(piece.devices())) for piece in pieces] == list(mesh.devices)
    array = _join(mesh, spec, host, pieces)
    np.testing.assert_array_equal(array, host)
    assert array.sharding_spec == spec


def test_an_array_that_lies_right_is_not_copied(mesh, spec, host):
    array = _join(mesh, spec, host, _cut(mesh, spec, host))
    again = _cut(mesh, spec, array, donated=True)
    assert not array.is_deleted()
    pointers = [[p.unsafe_buffer_pointer() for p in pieces] for pieces in (array.device_buffers, again)]
    assert pointers[0] == pointers[1]


def test_a_donated_array_is_gone_and_its_pieces_stay(mesh, spec, host):
    argument = jax.numpy.array(host)
    pieces = _cut(mesh, spec, argument, donated=True)
    assert argument.is_deleted()
    np.testing.assert_array_equal(_join(mesh, spec, host, pieces), host)


def test_a_donated_numpy_array_is_not_written_to(mesh, host):
    (piece,) = shard_argument(host, mesh.devices[:1], [(slice(None), slice(None))], keep=False)
    jax.jit(lambda x: x + 1, donate_argnums=0)(piece)
    np.testing.assert_array_equal(host, np.arange(32).reshape(8, 4))


def test_micro_batches_are_cut_each(mesh, spec, host):
    micro_batches = _cut(mesh, mesh.get_logical_mesh((2, 2)).make_tile_spec(host[:2], [0], [0]), host[:2])
    assert len(micro_batches) == 4
    spec = mesh.get_logical_mesh((4, 1)).make_tile_spec(host[:4], [0], [0])
    indices = pxla.spec_to_indices((4, 4), spec)
    (pieces,) = mesh.shard_args_to_bufs([indices], [False], [True], 2, [host])
    for number, batch in enumerate(pieces):
        np.testing.assert_array_equal(_join(mesh, spec, host[:4], batch), host[4 * number : 4 * number + 4])


apply_before()
SPEC = ShardingSpec([Chunked([2]), NoSharding()], [Replicated(2), ShardedAxis(0)])


@pytest.fixture
def whole():
    return np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def array(whole):
    indices = spec_to_indices(whole.shape, SPEC)
    pieces = [jax.device_put(whole[i], d) for i, d in zip(indices, jax.devices(), strict=False)]
    return make_sharded_array(jax.core.get_aval(whole), SPEC, pieces, indices)


def test_jax_computes_with_it(array, whole):
    np.testing.assert_allclose((array + 1).sum(), (whole + 1).sum())
    np.testing.assert_array_equal(jax.jit(lambda x: x.T)(array), whole.T)


def test_other_arrays_have_no_specification(whole):
    with pytest.raises(AttributeError, match="sharding_spec"):
        _ = jax.numpy.asarray(whole).sharding_spec
    assert not hasattr(jax.numpy.asarray(whole), "sharding_spec")


def test_its_value_can_be_pickled(array, whole):
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), whole)


KIB = 1024


@pytest.fixture
def device():
    gc.collect()
    device = jax.devices()[5]
    device.clear_memory_stats()
    return device


def test_memory_in_use_is_that_of_the_live_arrays_of_the_device(device):
    before = device.memory_allocated()
    array = jax.device_put(np.zeros(16 * KIB, np.float32), device)
    elsewhere = jax.device_put(np.zeros(16 * KIB, np.float32), jax.devices()[6])
    assert device.memory_allocated() - before == 64 * KIB
    array.delete()
    assert device.memory_allocated() == before
    assert elsewhere.shape == (16 * KIB,)


def test_the_peak_stays_until_it_is_cleared(device):
    array = jax.device_put(np.zeros(16 * KIB, np.float32), device)
    peak = device.max_memory_allocated()
    assert peak >= 64 * KIB
    array.delete()
    assert device.max_memory_allocated() == peak
    device.clear_memory_stats()
    assert device.max_memory_allocated() == device.memory_allocated() <= peak - 64 * KIB


def test_what_an_execution_allocates_counts_in_the_peak(device):
    note_execution(device, 1 << 20)
    assert device.max_memory_allocated() >= 1 << 20


def test_after_the_barrier_everything_is_ready(device):
    array = jax.jit(lambda x: x @ x)(jax.device_put(jnp.ones((200, 200)), device))
    device.synchronize_all_activity()
    assert array.is_ready()


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


def test_an_array_that_lies_otherwise_is_cut_anew(mesh, spec, host):
    other = mesh.get_logical_mesh((2, 2)).make_tile_spec(host, [1], [0])
    array = _join(mesh, spec, host, _cut(mesh, spec, host))
    np.testing.assert_array_equal(_join(mesh, other, host, _cut(mesh, other, array)), host)


def test_numbers_become_arrays(mesh):
    pieces = _cut(mesh, pxla.ShardingSpec([], [pxla.Replicated(4)]), 3)
    assert [int(piece) for piece in pieces] == [3] * 4
    assert pieces[0].dtype == np.int32


def test_results_are_sharded_arrays(mesh, spec, host):
    assert isinstance(_join(mesh, spec, host, _cut(mesh, spec, host)), ShardedDeviceArray)


def test_memory_is_available_and_shared_by_the_devices(device):
    assert 0 < device.available_memory() * len(jax.devices()) < 1 << 50


def test_a_barrier_is_not_measured():
    assert _measure(("barrier",)) == 0
    assert _measure(("create-communicator", (_groups()[0],))) == 0
