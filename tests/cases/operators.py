"""Small programs of operators that the tests of the engine share."""

import numpy as np

from alpa_dejavu.sharding._operator import Dims, DotDims, ProgramOperator

MATMUL = DotDims((), (), (1,), (0,))
GRADIENT = DotDims((), (), (0,), (0,))
BACK = DotDims((), (), (1,), (1,))


def parameter(*shape, **fields):
    return ProgramOperator("parameter", (), shape, 4, **fields)


def dot(a, b, *shape, dims=MATMUL):
    return ProgramOperator("dot", (a, b), shape, 4, attributes=dims)


def elementwise(*operands, shape, name="add"):
    return ProgramOperator("elementwise", operands, shape, 4, name=name)


def output(a, *shape, alias=None):
    return ProgramOperator("output", (a,), shape, 4, alias=alias)


def reduce(a, zero, *shape, dims):
    return ProgramOperator("reduce", (a, zero), shape, 4, attributes=Dims(dims))


def two_layers(batch, hidden):
    """Two matrix products, one after the other: x @ w0 @ w1."""
    return [
        parameter(batch, hidden), parameter(hidden, hidden), dot(0, 1, batch, hidden),
        parameter(hidden, hidden), dot(2, 3, batch, hidden),
    ]


def two_layer_gradients(batch, hidden):
    """Two products and the gradients of both weights."""
    shape = (hidden, hidden)
    return [
        *two_layers(batch, hidden), dot(2, 4, *shape, dims=GRADIENT), dot(4, 3, batch, hidden, dims=BACK),
        dot(0, 6, *shape, dims=GRADIENT), elementwise(1, 7, shape=shape), elementwise(3, 5, shape=shape),
        output(8, *shape, alias=1), output(9, *shape, alias=3),
    ]


def training_step(batch, hidden):
    """One product, the gradient of its weight, and an update of weight and momentum that replaces both."""
    shape = (hidden, hidden)
    return [
        parameter(batch, hidden),  # 0 x
        parameter(*shape),  # 1 w
        parameter(*shape),  # 2 m
        dot(0, 1, batch, hidden),  # 3 y
        dot(0, 3, *shape, dims=GRADIENT),  # 4 the gradient of |y|^2 / 2
        elementwise(4, 4, shape=shape, name="multiply"),  # 5
        elementwise(2, 5, shape=shape),  # 6 new m
        elementwise(6, 4, shape=shape, name="divide"),  # 7
        elementwise(1, 7, shape=shape),  # 8 new w
        output(6, *shape, alias=2), output(8, *shape, alias=1),
    ]


def pieces(whole, spec, mesh):
    """The part of an array that each device has under a spec."""
    parts = []
    for place in np.ndindex(mesh.shape):
        part = whole
        for dim, axes in enumerate(spec):
            index, count = 0, 1
            for axis in axes:
                index, count = index * mesh.shape[axis] + place[axis], count * mesh.shape[axis]
            part = np.split(part, count, axis=dim)[index]
        parts.append(part)
    return parts
