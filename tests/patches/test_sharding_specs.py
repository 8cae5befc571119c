"""Specifications of shardings, against what jax itself says of them."""
import pytest
from jax._src.sharding_specs import NoSharding, Replicated, ShardingSpec

from alpa_stock_jax.sharding_specs import hashable_index, sharding_proto


def test_special_axes_are_refused():
    with pytest.raises(NotImplementedError, match="manual axes"):
        sharding_proto(ShardingSpec([NoSharding()], [Replicated(2)]), {0: 1})


def test_indices_can_be_hashed():
    assert hash(hashable_index((slice(0, 2), 3))) == hash(hashable_index((slice(0, 2), 3)))
    assert hashable_index(slice(0, 2)) != hashable_index(slice(0, 3))
