"""Arguments on other meshes than their readers are fetched before a pipeline starts, and no others."""

import types

from alpa.device_mesh import DistributedArray, ReplicatedDistributedArray

from alpa_stock_jax.pipeline_moves import fetch_elsewhere


class Array(DistributedArray):
    """An array that knows whether it was fetched."""

    def __init__(self, device_mesh, indices=()):
        self.device_mesh, self.indices, self.aval, self.fetched = device_mesh, indices, None, False

    def __del__(self):
        pass

    @property
    def _value(self):
        self.fetched = True
        return "copy"


def test_what_lies_elsewhere_is_fetched():
    meshes = [object(), object()]
    arguments = [Array(meshes[0]), Array(meshes[0]), Array(meshes[1]), 1.0]
    executable = _executable(meshes, [[0, 3], [1, 2, 3]], [[()] * 2, [()] * 3])
    assert fetch_elsewhere(executable, arguments) == arguments
    assert [one.fetched for one in arguments[:3]] == [False, True, False]


def test_what_lies_on_other_meshes_or_is_cut_otherwise_is_given_as_a_copy():
    meshes = [object() for _ in range(3)]
    arrays = [
        ReplicatedDistributedArray(meshes[:2], [Array(meshes[0], "rows"), Array(meshes[1], "columns")])
        for _ in range(3)
    ]
    executable = _executable(meshes, [[0, 1], [0, 1], [2]], [["rows", "rows"], ["columns", "rows"], ["rows"]])
    assert fetch_elsewhere(executable, arrays) == [arrays[0], "copy", "copy"]


def _executable(meshes, numbers, indices):
    return types.SimpleNamespace(mesh_group=meshes, mesh_arg_indices=numbers, input_shard_indices=indices)
