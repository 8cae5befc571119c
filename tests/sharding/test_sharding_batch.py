"""Finding batch dimensions and depths."""

import pytest

from alpa_dejavu.sharding._batch import operator_batch_dims, reshaped_dims
from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._operator import Dims, DotDims, ProgramOperator
from operators import GRADIENT, dot, elementwise, parameter, reduce, two_layers


def test_the_batch_spreads_from_the_first_product():
    operators = [
        *two_layers(16, 8),
        ProgramOperator("transpose", (4,), (8, 16), 4, attributes=Dims((1, 0))),
        ProgramOperator("constant", (), (), 4),
        reduce(5, 6, 16, dims=(0,)),
        reduce(5, 6, 8, dims=(1,)),
        dot(0, 4, 8, 8, dims=GRADIENT),
    ]
    assert operator_batch_dims(operators) == [0, None, 0, None, 0, 1, None, 0, None, None]


def test_the_batch_of_a_product_with_a_matrix_for_each_way_is_behind_the_ways():
    ways, batch, hidden, wide = 4, 16, 8, 12
    weight = ProgramOperator("reshape", (2,), (ways, hidden, wide), 4)
    operators = [
        parameter(ways, batch, hidden),
        elementwise(0, shape=(ways, batch, hidden), name="tanh"),
        parameter(ways, hidden * wide),
        weight,
        dot(1, 3, ways, batch, wide, dims=DotDims((0,), (0,), (2,), (1,))),
    ]
    assert operator_batch_dims(operators) == [1, 1, None, None, 1]
    swapped = dot(3, 1, ways, wide, batch, dims=DotDims((0,), (0,), (1,), (2,)))
    assert operator_batch_dims([*operators[:4], swapped]) == [1, 1, None, None, 2]
    scores = dot(1, 1, ways, batch, batch, dims=DotDims((0,), (0,), (2,), (2,)))
    assert operator_batch_dims([*operators[:4], scores])[:2] == [0, 0]


def test_a_stage_begins_anew():
    marked = ProgramOperator("identity", (4,), (16, 8), 4, stage_start=True)
    operators = [*two_layers(16, 8), marked, parameter(8, 8), dot(6, 6, 8, 8)]
    assert operator_batch_dims(operators)[7] == 0


@pytest.mark.parametrize(
    ("old", "new", "pairs"),
    [((8, 4, 6), (32, 6), [(0, 0), (2, 1)]), ((32, 6), (8, 4, 6), [(0, 0), (1, 2)]), ((4, 6), (6, 4), [(0, 0)])],
)
def test_a_reshape_keeps_leading_dimensions(old, new, pairs):
    assert reshaped_dims(old, new) == pairs


def test_products_are_deep_and_reductions_start_again():
    operators = [
        *two_layers(16, 8), elementwise(4, shape=(16, 8), name="tanh"), ProgramOperator("constant", (), (), 4),
        reduce(5, 6, 16, dims=(1,)),
    ]
    assert Facts.of(operators).depths == [0, 0, 1000, 0, 2000, 2001, 0, 0]


def test_tensors_of_another_stage_lie_deep():
    operators = [
        parameter(16, 8), ProgramOperator("identity", (0,), (16, 8), 4, stage_start=True), parameter(8, 8),
        dot(1, 2, 16, 8),
    ]
    assert Facts.of(operators).depths[:2] == [20, 20]
