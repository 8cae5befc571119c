"""A sharding specification's OpSharding."""
from jax.interpreters.pxla import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec


def test_tiles_and_replicas():
    proto = ShardingSpec([Chunked([2]), NoSharding()], [Replicated(2), ShardedAxis(0)]).sharding_proto()
    assert list(proto.tile_assignment_dimensions) == [2, 1, 2]
    assert list(proto.tile_assignment_devices) == [0, 2, 1, 3]
    assert proto.replicate_on_last_tile_dim
