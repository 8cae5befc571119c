"""Specifications of shardings, against what jax itself says of them."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.lib import xla_client as xc
from jax._src.op_shardings import op_sharding_to_indices
from jax._src.sharding_specs import (
    Chunked,
    NoSharding,
    Replicated,
    ShardedAxis,
    ShardingSpec,
    Unstacked,
    spec_to_indices,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_stock_jax.sharding_specs import new_mesh_sharding_specs, sharding_proto


@st.composite
def _specs(draw):
    """A specification on a mesh of up to three axes, and a shape that it divides."""
    sizes = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3))
    rank = draw(st.integers(0, 3))
    places = [draw(st.integers(-1, rank - 1)) for _ in sizes]
    chunks = [[size for size, place in zip(sizes, places, strict=True) if place == d] for d in range(rank)]
    order = sorted((place, axis) for axis, place in enumerate(places) if place >= 0)
    number = {axis: position for position, (_, axis) in enumerate(order)}
    mapping = [ShardedAxis(number[a]) if a in number else Replicated(size) for a, size in enumerate(sizes)]
    shape = tuple(int(np.prod(c)) * draw(st.integers(1, 2)) for c in chunks)
    return ShardingSpec([Chunked(c) if c else NoSharding() for c in chunks], mapping), shape, int(np.prod(sizes))


@given(_specs())
def test_the_op_sharding_places_what_the_specification_places(case):
    spec, shape, num_devices = case
    sharding = xc.HloSharding.from_proto(sharding_proto(spec))

    def extents(indices):
        return [tuple(part.indices(size)[:2] for part, size in zip(i, shape, strict=True)) for i in indices]

    found = op_sharding_to_indices(sharding, shape, num_devices)
    assert extents(found) == extents(spec_to_indices(shape, spec))


def test_an_unstacked_dimension_is_refused():
    with pytest.raises(NotImplementedError, match="Chunked"):
        sharding_proto(ShardingSpec([Unstacked(2)], [ShardedAxis(0)]))


@pytest.mark.parametrize(
    "partition",
    [PartitionSpec("a"), PartitionSpec(None, "b"), PartitionSpec("b", "a"), PartitionSpec(("b", "a")), PartitionSpec()],
)
def test_axes_of_a_mesh_give_the_specification_that_jax_gives(partition):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"))
    parts = [(p,) if isinstance(p, str) else p or () for p in partition]
    mapping = {axis: dimension for dimension, axes in enumerate(parts) for axis in axes}
    spec = new_mesh_sharding_specs({"a": 2, "b": 2}, ("a", "b"))(2, mapping)
    expected = NamedSharding(mesh, partition)._to_xla_hlo_sharding(2)
    found = xc.HloSharding.from_proto(sharding_proto(spec))
    assert op_sharding_to_indices(found, (4, 8), 4) == op_sharding_to_indices(expected, (4, 8), 4)
