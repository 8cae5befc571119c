"""Arrays in pieces on a mesh are arrays of jax that know their specification."""

import pickle

import jax
import numpy as np
import pytest
from jax._src.sharding_specs import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec, spec_to_indices

from alpa_stock_jax._registry import apply_before
from alpa_stock_jax.sharded_array import make_sharded_array

apply_before()
SPEC = ShardingSpec([Chunked([2]), NoSharding()], [Replicated(2), ShardedAxis(0)])


@pytest.fixture
def host():
    return np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def array(host):
    indices = spec_to_indices(host.shape, SPEC)
    pieces = [jax.device_put(host[i], d) for i, d in zip(indices, jax.devices(), strict=False)]
    return make_sharded_array(jax.core.get_aval(host), SPEC, pieces, indices)


def test_jax_computes_with_it(array, host):
    np.testing.assert_allclose((array + 1).sum(), (host + 1).sum())
    np.testing.assert_array_equal(jax.jit(lambda x: x.T)(array), host.T)


def test_other_arrays_have_no_specification(host):
    with pytest.raises(AttributeError, match="sharding_spec"):
        _ = jax.numpy.asarray(host).sharding_spec
    assert not hasattr(jax.numpy.asarray(host), "sharding_spec")


def test_its_value_can_be_pickled(array, host):
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array)), host)
