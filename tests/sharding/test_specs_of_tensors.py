"""Specs as sets of elements on devices: what is written into HLO, and what a reshape leaves in place."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_dejavu.sharding import LogicalMesh
from alpa_dejavu.sharding._op_sharding import from_op_sharding, to_op_sharding
from alpa_dejavu.sharding._spec import divides, num_tiles, replicated, reshape_spec, tile
from alpa_dejavu.sharding.hlo.schema import OpSharding
from alpa_dejavu.sharding.hlo.shardings import MANUAL
from operators import pieces

MESHES = [(4, 1), (1, 4), (2, 2), (2, 4)]


def _elements(spec, shape, mesh):
    """The elements that each device has, by their row-major numbers."""
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return [frozenset(part.ravel().tolist()) for part in pieces(numbers, spec, mesh)]


@st.composite
def _mesh_and_spec(draw, rank):
    mesh = LogicalMesh(draw(st.sampled_from(MESHES)))
    axes = list(draw(st.permutations(mesh.axes)))
    cuts = {}
    for axis in axes[: draw(st.integers(0, len(axes)))]:
        dim = draw(st.integers(0, rank - 1))
        cuts[dim] = (*cuts.get(dim, ()), axis)
    return mesh, tile(rank, cuts, mesh.shape)


@given(_mesh_and_spec(3), st.permutations(range(8)))
def test_hlo_carries_a_spec_there_and_back(mesh_and_spec, ids):
    mesh, spec = mesh_and_spec
    mesh = LogicalMesh(mesh.shape, device_ids=tuple(i for i in ids if i < mesh.num_devices))
    assert from_op_sharding(to_op_sharding(spec, mesh), 3, mesh) == spec


@given(_mesh_and_spec(2))
def test_tiles_in_hlo_are_the_parts_of_the_spec(mesh_and_spec):
    mesh, spec = mesh_and_spec
    sharding = to_op_sharding(spec, mesh)
    parts = _elements(spec, (8, 8), mesh)
    if not sharding.tile_assignment_dimensions:
        assert all(part == parts[0] for part in parts)
        return
    devices = np.array(sharding.tile_assignment_devices).reshape(num_tiles(spec, mesh.shape), -1)
    for sharing in devices:
        assert len({parts[device] for device in sharing}) == 1
    assert len({parts[line[0]] for line in devices}) == len(devices)


SHAPES = st.sampled_from([(8, 6), (48,), (4, 2, 6), (2, 4, 6), (8, 2, 3), (1, 48), (16, 3), (4, 12), (8, 1, 6)])


@given(st.data(), SHAPES, SHAPES)
def test_a_reshaped_spec_moves_no_element(data, old, new):
    mesh, spec = data.draw(_mesh_and_spec(len(old)))
    if not divides(spec, old, mesh.shape):
        return
    found = reshape_spec(spec, old, new, mesh.shape)
    if found is not None:
        assert divides(found, new, mesh.shape)
        assert _elements(found, new, mesh) == _elements(spec, old, mesh)


def test_undefined_and_foreign_shardings_have_no_spec():
    mesh = LogicalMesh((2, 2))
    assert from_op_sharding(OpSharding(type=MANUAL), 2, mesh) is None
    odd = OpSharding(type=3, tile_assignment_dimensions=[4, 1], tile_assignment_devices=[0, 3, 1, 2])
    assert from_op_sharding(odd, 2, mesh) is None


@pytest.mark.parametrize(
    ("spec", "old", "new", "expected"),
    [
        (((0,), ()), (8, 6), (4, 2, 6), ((0,), (), ())),
        (((0,), (1,)), (2, 24), (48,), ((0, 1),)),
        (((), (0,)), (8, 6), (48,), None),
        (((0,), ()), (3, 4), (3, 2, 2), ((0,), (), ())),
        (replicated(2), (3, 4), (12,), ((),)),
    ],
)
def test_reshapes_that_are_known(spec, old, new, expected):
    assert reshape_spec(spec, old, new, (2, 2)) == expected
