"""Arrays in pieces on a mesh are arrays of jax that know their specification."""
import jax
import numpy as np
import pytest
from jax._src.sharding_specs import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec, spec_to_indices

from alpa_stock_jax.sharded_array import MeshSharding, ShardedDeviceArray, make_sharded_array

SPEC = ShardingSpec([Chunked([2]), NoSharding()], [Replicated(2), ShardedAxis(0)])


@pytest.fixture
def host():
    return np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def array(host):
    indices = spec_to_indices(host.shape, SPEC)
    pieces = [jax.device_put(host[i], d) for i, d in zip(indices, jax.devices(), strict=False)]
    return make_sharded_array(jax.core.get_aval(host), SPEC, pieces, indices)


def test_the_pieces_make_the_whole(array, host):
    np.testing.assert_array_equal(array, host)


def test_it_tells_its_specification_and_pieces(array, host):
    assert array.sharding_spec == SPEC
    assert array.indices == spec_to_indices(host.shape, SPEC)
    assert len(array.device_buffers) == 4
    assert [piece.shape for piece in array.one_replica_buffers] == [(2, 6), (2, 6)]


def test_isinstance_tells_it_from_other_arrays(array, host):
    assert isinstance(array, ShardedDeviceArray)
    assert not isinstance(jax.numpy.asarray(host), ShardedDeviceArray)
    assert not isinstance(host, ShardedDeviceArray)


def test_its_sharding_equals_another_of_the_same_specification(array):
    assert array.sharding == MeshSharding(jax.devices()[:4], SPEC)
    assert hash(array.sharding) == hash(MeshSharding(jax.devices()[:4], SPEC))
