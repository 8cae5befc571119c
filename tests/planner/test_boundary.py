"""What crosses between stages."""

import numpy as np
from models import chain

from alpa_dejavu.boundary import Boundary
from alpa_dejavu.problem import Layer, Model, Operators, Tensor


def test_a_chain_passes_one_tensor_each_way():
    bound = Boundary.of(chain(3, activation_bytes=100.0))
    np.testing.assert_array_equal(bound.forward_bytes, [[0, 0, 0], [0, 100, 100], [0, 0, 100]])
    np.testing.assert_array_equal(bound.backward_bytes, [[100, 100, 0], [0, 100, 0], [0, 0, 0]])
    np.testing.assert_array_equal(bound.forward_tensors, bound.forward_bytes / 100)
    np.testing.assert_array_equal(bound.backward_tensors, bound.backward_bytes / 100)


def test_a_skip_connection_enters_each_stage_once():
    nothing = Operators.of([])
    layers = tuple(Layer(str(n), nothing, nothing, nothing) for n in range(4))
    skip = Tensor(7.0, "activation", 0, (2, 3, 5))
    bound = Boundary.of(Model(layers, (skip,)))
    assert bound.forward_bytes[1, 3] == bound.forward_bytes[3, 3] == bound.forward_bytes[2, 2] == 7
    assert bound.forward_bytes[1, 1] == bound.forward_bytes[0, 3] == 0
