"""Clients compile what Alpa gives them: computations for one device, annotated ones and partitioned ones."""

import os

import alpa
import jax
import numpy as np
import pytest
from alpa.util import XlaPassContext, compile_allocate_zero_buffers, compile_concatenate, get_compile_options
from jax._src.lib import xla_client as xc
from jax._src.lib import xla_extension as xe
from jax.interpreters import pxla

from alpa_dejavu.sharding.hlo import HloModuleProto
from alpa_stock_jax.compile import MeshBackend
from alpa_stock_jax.executable import MeshExecutable
from alpa_stock_jax.hlo_combine import combine_all_reduces
from alpa_stock_jax.hlo_gradients import rewrite_gradient_accumulation
from hlo_tools import opcodes

ANNOTATED = """HloModule m
ENTRY e { a = f32[8,4] parameter(0), sharding={devices=[4,1]0,1,2,3}
  b = f32[4,4] parameter(1), sharding={replicated}
  c = f32[8,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[4,1]0,1,2,3}
  ROOT t = (f32[8,4]) tuple(c), sharding={{devices=[4,1]0,1,2,3}} }"""
SUM = """HloModule sums
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e { old = f32[3] parameter(0)
  new = f32[3] parameter(1)
  r = f32[3] all-reduce(new), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  total = f32[3] add(old, r)
  ROOT t = (f32[3]) tuple(total) }"""


def _computation(text):
    return xc.XlaComputation(xe.hlo_module_from_text(text).as_serialized_hlo_module_proto())


def _options(count, partition):
    return get_compile_options(1, count, np.arange(count).reshape(1, -1), partition, False, 42)


def _put(client, devices, pieces):
    return [client.buffer_from_pyval(np.array(piece), device) for piece, device in zip(pieces, devices, strict=True)]


@pytest.fixture
def client():
    return jax.devices()[0].client


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [7, 5, 6, 4]])
def test_an_annotated_module_runs_on_the_devices_of_its_mesh_in_their_order(client, order):
    devices = [client.devices()[i] for i in order]
    executable = MeshBackend(client, devices).compile(_computation(ANNOTATED), _options(4, True))
    a, b = np.random.default_rng(0).standard_normal((2, 8, 4)).astype(np.float32)
    b = b[:4]
    (result,) = executable.execute_sharded_on_local_devices(
        [_put(client, devices, np.split(a, 4)), _put(client, devices, [b] * 4)]
    )
    assert [next(iter(piece.devices())) for piece in result] == devices
    np.testing.assert_allclose(np.concatenate([np.asarray(p) for p in result]), a @ b, rtol=1e-5)
    text = executable.hlo_modules()[0].to_string()
    assert "num_partitions=4" in text
    assert "f32[2,4]" in text


def test_runs_before_the_last_micro_batch_have_nothing_of_what_combines_gradients(client, monkeypatch):
    two = SUM.replace(
        "total = f32[3] add(old, r)",
        """total = f32[3] add(old, r)
  r2 = f32[3] all-reduce(old), channel_id=2, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  total2 = f32[3] add(new, r2)""",
    ).replace("(f32[3]) tuple(total)", "(f32[3], f32[3]) tuple(total, total2)")
    module = HloModuleProto.FromString(_computation(two).as_serialized_hlo_module_proto())
    given = []

    def optimize(partitioned):
        given.append(partitioned)
        return combine_all_reduces(partitioned, 1 << 60)

    devices = client.devices()[:4]
    executable = MeshExecutable(client, rewrite_gradient_accumulation(module), devices, 4, optimize)
    channels = xe.get_grad_sync_channel_ids(executable.hlo_modules()[0])
    assert len(channels.strip(".").split(".")) == 1, "they are combined"
    ones = [_put(client, devices, [np.ones(3, np.float32)] * 4) for _ in range(2)]
    monkeypatch.setitem(os.environ, f"{module.name}XLA_SKIP_NCCL_COLLECTIVE_IDS", channels)
    assert [float(piece[0][0]) for piece in executable.execute_sharded_on_local_devices(ones)] == [2, 2]
    with_sums, without = (opcodes(each) for each in given)
    assert with_sums.count("all-reduce") == 2
    assert set(without) == {"parameter", "add", "tuple"}
    monkeypatch.setitem(os.environ, f"{module.name}XLA_SKIP_NCCL_COLLECTIVE_IDS", ".7.")
    with pytest.raises(ValueError, match="but must be"):
        executable.execute_sharded_on_local_devices(ones)


def test_too_few_devices_are_an_error_that_says_so(client):
    with pytest.raises(RuntimeError, match="16 partitions needs as many devices; there are 8"):
        client.compile(_computation(ANNOTATED), _options(16, False))


def test_stock_compilation_is_as_before(client):
    assert jax.jit(lambda x: x + 1)(2) == 3
    text = str(jax.jit(lambda x: x + 1).lower(2.0).compiler_ir("stablehlo"))
    (result,) = client.compile(text).execute([client.buffer_from_pyval(np.float32(2))])
    assert result == 3


def test_one_device_takes_the_short_way(client):
    executable = client.compile(_computation(ANNOTATED))
    a, b = np.ones((8, 4), np.float32), np.ones((4, 4), np.float32)
    (result,) = executable.execute([client.buffer_from_pyval(a), client.buffer_from_pyval(b)])
    np.testing.assert_array_equal(result, a @ b)
    assert executable.total_allocation_size() >= a.nbytes * 2 + b.nbytes


def test_a_run_leaves_out_the_collectives_that_alpa_names(client, monkeypatch):
    module = HloModuleProto.FromString(_computation(SUM).as_serialized_hlo_module_proto())
    late = xc.XlaComputation(rewrite_gradient_accumulation(module).SerializeToString())
    executable = client.compile(late, _options(4, False))
    compiled = executable.hlo_modules()[0]
    channels = xe.get_grad_sync_channel_ids(compiled)
    assert channels == ".1."
    devices = client.devices()[:4]
    name = f"{compiled.name}XLA_SKIP_NCCL_COLLECTIVE_IDS"

    def run():
        old, new = ([np.full(3, value + i, np.float32) for i in range(4)] for value in (0, 10))
        buffers = [_put(client, devices, value) for value in (old, new)]
        (result,) = executable.execute_sharded_on_local_devices(buffers)
        return [float(np.asarray(piece)[0]) for piece in result]

    monkeypatch.setitem(os.environ, name, channels)
    assert run() == [10, 12, 14, 16]
    monkeypatch.setitem(os.environ, name, "")
    assert run() == [52] * 4
    executable.delete()


def test_collectives_are_combined_up_to_the_threshold(client):
    two = SUM.replace("total = f32[3] add(old, r)", """r2 = f32[3] all-reduce(old), channel_id=2,
  replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
  total = f32[3] multiply(r2, r)""")
    counts = []
    for threshold in (0, 1 << 60):
        with XlaPassContext({"combiner::all_reduce_threshold": threshold}):
            executable = client.compile(_computation(two), _options(4, False))
        counts.append(executable.hlo_modules()[0].to_string().count("all-reduce("))
    assert counts == [2, 1]


def test_zero_buffers(client):
    executable = compile_allocate_zero_buffers(client, 4, [(3, 2), (5,)], [np.dtype(np.float32), np.dtype(np.int32)])
    first, second = executable.execute_sharded_on_local_devices([])
    assert [piece.shape for piece in first] == [(3, 2)] * 4
    assert second[3].dtype == np.int32
    assert not np.asarray(first[2]).any()


def test_concatenation_keeps_the_sharding(client):
    spec = pxla.ShardingSpec((pxla.Chunked([4]), pxla.NoSharding()), (pxla.ShardedAxis(0),))
    aval = jax.core.ShapedArray((8, 2), np.dtype(np.float32))
    hlo = compile_concatenate((1, 4), spec, 2, 0, aval)
    assert hlo.is_spmd_partitioned()
    assert [list(shape.dimensions()) for shape in hlo.program_shape().parameter_shapes()] == [[2, 2], [2, 2]]


def test_a_local_mesh_compiles_for_its_own_devices():
    devices = jax.local_devices()[2:4]
    parallel = alpa.parallelize(lambda x: x * 2, method=alpa.ShardParallel(devices=devices), batch_argnums=())
    result = parallel(np.ones((8, 8), np.float32))
    assert set(result.devices()) == set(devices)
    np.testing.assert_array_equal(result, 2)
