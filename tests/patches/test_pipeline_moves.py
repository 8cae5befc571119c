"""Arguments on other meshes than their readers are fetched before a pipeline starts, and no others."""

import types

from alpa.device_mesh import DistributedArray

from alpa_stock_jax.pipeline_moves import fetch_elsewhere


class Array(DistributedArray):
    """An array that knows whether it was fetched."""

    def __init__(self, device_mesh):
        self.device_mesh, self.fetched = device_mesh, False

    def __del__(self):
        pass

    @property
    def _value(self):
        self.fetched = True


def test_what_lies_elsewhere_is_fetched():
    meshes = [object(), object()]
    arguments = [Array(meshes[0]), Array(meshes[0]), Array(meshes[1]), 1.0]
    executable = types.SimpleNamespace(mesh_group=meshes, mesh_arg_indices=[[0, 3], [1, 2, 3]])
    fetch_elsewhere(executable, arguments)
    assert [one.fetched for one in arguments[:3]] == [False, True, False]
