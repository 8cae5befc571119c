"""Whole programs: the solution is the cheapest of all, and what Alpa would choose."""

import itertools
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.sharding import LogicalMesh, ProgramOperator, ShardingOptions, solve
from alpa_dejavu.sharding._blocks import Blocks
from alpa_dejavu.sharding._facts import Facts
from alpa_dejavu.sharding._graph import roots_of
from alpa_dejavu.sharding._options import INFINITY_COST
from alpa_dejavu.sharding._spec import divides
from alpa_dejavu.sharding._strategies import SitedOperators, relaxed
from operators import (
    BACK,
    GRADIENT,
    dot,
    elementwise,
    output,
    parameter,
    reduce,
    training_step,
    two_layer_gradients,
    two_layers,
)

SIZES = st.sampled_from([4, 8, 64])


def _enumerate(operators, mesh, options):
    """The least cost over all choices, summed up from the operators' own tables."""
    facts = Facts.of(operators)
    sited = SitedOperators(mesh, relaxed(facts, mesh, options), Blocks()).of(facts)
    tables, decides = [entry.table for entry in sited], roots_of(operators, sited)
    roots = [i for i, root in enumerate(decides) if root == i]
    best = np.inf
    for choice in itertools.product(*(range(len(tables[i].strategies)) for i in roots)):
        chosen = dict(zip(roots, choice, strict=True))
        picks = [int(entry.remap[chosen[root]]) for entry, root in zip(sited, decides, strict=True)]
        total = sum(table.cost[pick] for table, pick in zip(tables, picks, strict=True))
        for operator, table, pick in zip(operators, tables, picks, strict=True):
            for operand, edge in zip(operator.operands, table.edges, strict=True):
                total += edge[picks[operand], pick]
            if operator.alias is not None:
                same = tables[operator.alias].outputs[picks[operator.alias]] == table.outputs[pick]
                total += 0 if same else np.inf
        best = min(best, total)
    return best


@settings(max_examples=20, deadline=None)
@given(SIZES, SIZES, st.sampled_from([(4, 1), (1, 2), (2, 2)]), st.sampled_from([-1, 0]), st.booleans())
def test_the_solution_is_the_cheapest_of_all(batch, hidden, shape, force, mixed):
    mesh = LogicalMesh(shape, (1, 1), (1, 0.1))
    options = ShardingOptions(force_batch_dim_to_mesh_dim=force, allow_mixed_mesh_shape=mixed)
    operators = training_step(batch, hidden)
    assert solve(operators, mesh, options).objective == pytest.approx(_enumerate(operators, mesh, options))


@pytest.mark.parametrize("force", [-1, 0])
@pytest.mark.parametrize(
    ("batch", "hidden", "devices"),
    [(64, 256, (1, 3)), (8, 512, (1, 3)), (4096, 64, (1, 3)), (6, 32, (1, 7)), (6, 32, (7, 1)), (6, 32, (2, 7))],
)
def test_outputs_are_cut_into_equal_parts_where_they_can_be(batch, hidden, devices, force):
    """On 7 devices no dimension of 32, nor the 6 samples, can be cut: the gradients are whole."""
    mesh, shape = LogicalMesh(devices), (hidden, hidden)
    operators = [
        *two_layers(batch, hidden), dot(2, 4, *shape, dims=GRADIENT), dot(4, 3, batch, hidden, dims=BACK),
        dot(0, 6, *shape, dims=GRADIENT), output(5, *shape), output(7, *shape),
    ]  # fmt: skip
    options = ShardingOptions(force_batch_dim_to_mesh_dim=force)
    found = solve(operators, mesh, options)
    assert found.objective == pytest.approx(_enumerate(operators, mesh, options))
    for gradient in (5, 7):
        assert divides(found.outputs[gradient], shape, mesh.shape)


def test_a_forced_batch_dimension_is_cut_along_its_axis():
    solution = solve(training_step(8, 512), LogicalMesh((4, 1)), ShardingOptions(force_batch_dim_to_mesh_dim=0))
    assert solution.outputs[0] == ((0,), ())
    assert solution.objective < INFINITY_COST


def test_a_memory_budget_cuts_what_would_be_whole():
    operators, mesh = training_step(4096, 64), LogicalMesh((4, 1))
    free = solve(operators, mesh)
    tight = solve(operators, mesh, ShardingOptions(memory_budget_per_device=600_000))
    assert tight.objective >= free.objective
    with pytest.raises(ValueError, match="raise the budget"):
        solve(operators, mesh, ShardingOptions(memory_budget_per_device=1000))


def test_an_alias_that_cannot_be_kept_is_reported(caplog):
    operators = [
        parameter(6),
        ProgramOperator("constant", (), (), 4),
        parameter(8, 6),
        reduce(2, 1, 6, dims=(0,)),
        ProgramOperator("parameter", (), (6,), 4, pinned=((0,),)),
        ProgramOperator("output", (3,), (6,), 4, alias=4, pinned=((),)),
    ]
    with caplog.at_level(logging.WARNING):
        solve(operators, LogicalMesh((2, 1)))
    assert "no sharding in common" in caplog.text


def test_two_products_that_are_added_share_one_all_reduce():
    def step(*adds):
        columns, rows = parameter(8, 4096, pinned=((), (0,))), parameter(4096, 8, pinned=((0,), ()))
        return [columns, rows, columns, rows, dot(0, 1, 8, 8), dot(2, 3, 8, 8), *adds]

    mesh = LogicalMesh((4, 1))
    apart, together = solve(step(), mesh), solve(step(elementwise(4, 5, shape=(8, 8))), mesh)
    assert together.strategies[4].all_reduce == together.strategies[5].all_reduce == (0,)
    assert apart.objective - together.objective == pytest.approx(mesh.all_reduce_cost(8 * 8 * 4, 0))


def test_the_sum_of_an_accumulated_gradient_is_paid_once_in_so_many_micro_batches():
    operators = [
        parameter(4096, 8),
        parameter(8, 8),
        dot(0, 1, 4096, 8),
        dot(0, 2, 8, 8, dims=GRADIENT),
        parameter(8, 8),
        elementwise(4, 3, shape=(8, 8)),
        output(5, 8, 8, alias=4),
    ]
    mesh = LogicalMesh((4, 1))
    once = solve(operators, mesh, ShardingOptions(force_batch_dim_to_mesh_dim=0))
    often = solve(operators, mesh, ShardingOptions(force_batch_dim_to_mesh_dim=0, grad_acc_num_micro_batches=8))
    assert once.strategies[3].all_reduce == often.strategies[3].all_reduce == (0,)
    assert often.strategies[3].communication == pytest.approx(mesh.all_reduce_cost(8 * 8 * 4, 0) / 8)


def test_operators_out_of_order_are_refused():
    with pytest.raises(ValueError, match="stands after its operands"):
        solve([dot(0, 1, 8, 8)], LogicalMesh((2, 1)))


@pytest.mark.parametrize(("shape", "axis"), [((4, 1), 0), ((1, 4), 1)])
def test_a_large_batch_is_cut_and_a_large_weight_too(shape, axis):
    mesh = LogicalMesh(shape)
    by_data = solve(two_layer_gradients(4096, 8), mesh)
    assert by_data.outputs[0] == ((axis,), ())
    assert by_data.outputs[1] == by_data.outputs[3] == ((), ())
    assert by_data.strategies[5].all_reduce == by_data.strategies[7].all_reduce == (axis,)
    assert by_data.objective == pytest.approx(2 * mesh.all_reduce_cost(8 * 8 * 4, axis) + 2 * 3)
    by_model = solve(two_layer_gradients(8, 512), mesh)
    assert any(by_model.outputs[1])
    assert any(by_model.outputs[3])
    assert by_model.objective < mesh.all_reduce_cost(512 * 512 * 4, axis)
    assert not any(by_model.strategies[i].all_reduce for i in (5, 7))


def test_a_batch_that_cannot_be_cut_is_left_alone():
    solution = solve(two_layers(3, 8), LogicalMesh((4, 1)), ShardingOptions(force_batch_dim_to_mesh_dim=0))
    assert solution.outputs[0][0] == ()


def test_replicated_parameters_can_be_forbidden():
    solution = solve(training_step(4096, 8), LogicalMesh((4, 1)), ShardingOptions(allow_replicated_parameters=False))
    assert all(any(solution.outputs[i]) for i in range(3))


def test_a_collective_that_costs_infinitely_much_is_avoided():
    operators = [parameter(64, 64), parameter(64, 64), dot(0, 1, 64, 64), parameter(64, 64), dot(2, 3, 64, 64)]
    solution = solve(operators, LogicalMesh((4, 1)), ShardingOptions(all_gather_cost=1e13, all_to_all_cost=1e13))
    assert solution.objective < INFINITY_COST


def test_outputs_are_cut_like_the_parameters_that_they_replace():
    operators = training_step(64, 64)
    solution = solve(operators, LogicalMesh((2, 2)))
    for operator, spec in zip(operators, solution.outputs, strict=True):
        if operator.alias is not None:
            assert spec == solution.outputs[operator.alias]


def test_a_pinned_sharding_is_kept():
    operators = [parameter(64, 64, pinned=((), (0,))), parameter(64, 64), dot(0, 1, 64, 64)]
    assert solve(operators, LogicalMesh((4, 1))).outputs[0] == ((), (0,))


def _chain(layers):
    operators = [parameter(64, 64)]
    for _ in range(layers):
        last = len(operators) - 1
        operators += [
            parameter(64, 64), dot(last, last + 1, 64, 64), elementwise(last + 2, shape=(64, 64), name="tanh"),
        ]
    return [*operators, output(len(operators) - 1, 64, 64)]


def test_a_repeated_block_is_worked_out_once():
    mesh, options, blocks = LogicalMesh((2, 2)), ShardingOptions(), (Blocks(), Blocks())
    short, long = (
        SitedOperators(mesh, options, own).of(Facts.of(_chain(n))) for n, own in zip((4, 40), blocks, strict=True)
    )
    few, many = (len({id(entry.table) for entry in sited}) for sited in (short, long))
    assert many == few
    assert len(blocks[0]) == len(blocks[1])
