"""Arguments are cut onto a local mesh and results put together."""

import jax
import numpy as np
import pytest
from alpa.device_mesh import LocalPhysicalDeviceMesh
from jax.interpreters import pxla

from alpa_stock_jax.local_mesh import shard_argument


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


def test_an_array_that_lies_otherwise_is_cut_anew(mesh, spec, host):
    other = mesh.get_logical_mesh((2, 2)).make_tile_spec(host, [1], [0])
    array = _join(mesh, spec, host, _cut(mesh, spec, host))
    np.testing.assert_array_equal(_join(mesh, other, host, _cut(mesh, other, array)), host)


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
