"""What a stage communicates and keeps, as a sum over its layers, is what solving the whole stage gives."""

import functools

import numpy as np
import pytest

from alpa_dejavu.layers import cut_into_layers, trace
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions
from alpa_dejavu.sharding._build_program import layer_program
from alpa_dejavu.sharding._on_devices import layer_shardings
from alpa_dejavu.sharding.layers import MEMORY, kinds_of, layers_of, solvers_on
from layer_models import MODELS, communicated, sharded, sharded_as_one

OPTIONS = ShardingOptions(force_batch_dim_to_mesh_dim=0)
STAYING = [MEMORY.index(role) for role in ("parameter", "optimizer", "gradient")]
WAITING = [MEMORY.index(role) for role in ("activation", "input")]


@functools.lru_cache
def layers_of_model(model):
    return MODELS[model]()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", [(2, 2), (1, 4), (4, 1), (2, 4)])
def test_composing_a_stage_agrees_with_solving_it(model, shape):
    layers, mesh = layers_of_model(model), LogicalMesh(shape, (1.0, 1.0), (1.0, 0.1))
    stages = sharded(layers, mesh, OPTIONS)
    sent, memory = stages.sums(communicated), stages.sums(lambda layer: layer.memory())
    end = len(layers) - 1
    for first, last in {(0, 0), (0, 1), (1, end), (0, end)}:
        whole = sharded_as_one(layers[first : last + 1], mesh, OPTIONS)
        for composed, direct in zip(sent[first, last], communicated(whole), strict=True):
            assert composed.sum() == pytest.approx(direct.sum(), rel=0.05)
        for roles in (STAYING, WAITING):
            assert memory[first, last][roles].sum() == pytest.approx(whole.memory()[roles].sum(), rel=0.05)


@functools.lru_cache
def suite(name, num_layers, batch=8):
    step = cut_into_layers(trace(name, batch=batch), num_layers)
    data = step.forward, step.backward, step.updates, step.accumulators, step.data
    return layers_of(*data, gradients=step.gradients)


def batch_dims_of(layers):
    """The batch dimensions of what layers make."""
    program = layer_program(layers)
    pairs = zip((var for layer in layers for var in layer.forward.outvars), program.results, strict=True)
    dims = {var: program.facts.batch_dims[place] for var, place in pairs if place >= 0}
    return {var: dim for var, dim in dims.items() if dim is not None}


@pytest.mark.parametrize("shape", [(1, 4), (2, 2)])
def test_experts_cut_apart_within_a_block(shape):
    """Between some layers the tokens lie by experts, in the middle of four dimensions."""
    layers, mesh = suite("moe-380m", 16), LogicalMesh(shape, (1.0, 1.0), (1.0, 0.1))
    ranks = [{var.aval.ndim for var in layer.shared if var in layer.forward.outvars} for layer in layers]
    within = [n for n in range(15) if 4 in ranks[n]]
    assert within
    stages, known = sharded(layers, mesh, OPTIONS), batch_dims_of(layers)
    num_bytes = stages.sums(lambda layer: communicated(layer)[0])
    costs = stages.sums(lambda layer: np.asarray(layer.cost))
    for n in within[:2]:
        whole = sharded_as_one(layers[n : n + 2], mesh, OPTIONS, known)
        assert costs[n, n + 1] == pytest.approx(whole.cost, rel=0.1)
        # What costs the same may send other bytes: an all-reduce counts once, and costs as two all-gathers do.
        assert num_bytes[n, n + 1].sum() == pytest.approx(communicated(whole)[0].sum(), rel=0.1)


@pytest.mark.parametrize("model", ["gpt", "moe"])
@pytest.mark.parametrize("level", [0, 2, 3])
def test_shares_of_memory_are_those_of_its_tensors_one_by_one(model, level):
    mesh = LogicalMesh((2, 4), (1.0, 1.0), (1.0, 0.1))
    for program in kinds_of(layers_of_model(model))[1]:
        (solver,) = solvers_on([program], mesh, OPTIONS)
        place = np.unravel_index(solver.costs.argmin(), solver.costs.shape)
        (layer,) = layer_shardings(solver, *map(int, place), [level])
        strategies = solver.strategies(*map(int, place))
        cuts = [{axis for axes in strategy.output for axis in axes} for strategy in strategies]
        for index, operator in enumerate(program.operators):
            if operator.name == "select" and program.operators[operator.operands[0]].kind == "broadcast":
                cuts[operator.operands[0]] = cuts[index]  # a mask is made in the parts that a choice by it takes

        def device_bytes(index, num_bytes, cuts=cuts):
            return num_bytes / np.prod([mesh.shape[axis] for axis in cuts[index]])

        expected = [device_bytes(index, program.operators[index].num_bytes) for index in program.parameters]
        kept = [device_bytes(value.operator, value.num_bytes) for value in program.kept]
        shares = dict(zip(MEMORY, layer.memory(), strict=True))
        assert shares["parameter"] <= sum(expected) * (1 + 1e-9)
        assert level == 3 or shares["parameter"] == pytest.approx(sum(expected))
        assert shares["activation"] == pytest.approx(sum(kept))
        alive = [
            sum(device_bytes(v.operator, v.num_bytes) for v in values if v.first <= moment <= v.last)
            for values in (program.forward_temporaries, program.backward_temporaries)
            for moment in {v.first for v in values}
        ]
        assert shares["temporary"] == pytest.approx(max(alive, default=0.0))


@pytest.mark.parametrize("model", MODELS)
def test_the_axes_of_one_device_send_nothing(model):
    one, four = (sharded(layers_of_model(model), LogicalMesh((1, n)), OPTIONS).whole for n in (1, 4))
    assert not any(layer.collectives for layer in one)
    axes = {sent.axis for layer in four for sent in layer.collectives}
    assert axes == {1}
    # Nothing is divided along an axis of one device.
    assert all((layer.forward_cuts[:, 0] <= (layer.mesh_shape[0] > 1)).all() for layer in (*one, *four))
    assert sum(layer.memory().sum() for layer in four) < sum(layer.memory().sum() for layer in one)


def test_a_layer_that_begins_with_experts_knows_its_batch():
    small, large = (sharded(suite("moe-380m", 16, batch), LogicalMesh((2, 2)), OPTIONS).whole for batch in (8, 16))
    for one, twice in zip(small, large, strict=True):
        assert one.memory_parts[: STAYING[-1] + 1, 1].sum() == 0
        np.testing.assert_allclose(one.on(2, 2.0).memory()[STAYING], twice.memory()[STAYING], rtol=0.01)
        np.testing.assert_allclose(one.on(2, 2.0).memory()[WAITING], twice.memory()[WAITING], rtol=0.01)


def test_layers_that_two_cuts_have_in_common_are_sharded_once():
    mesh, shared = LogicalMesh((2, 2), (1.0, 1.0), (1.0, 0.1)), {}
    few, many = (kinds_of(suite("gpt-125m", number))[1] for number in (6, 9))  # 2 blocks in a layer, and 1 or 2
    first, second = (solvers_on(programs, mesh, OPTIONS, shared) for programs in (few, many))
    assert {*few} & {*many}
    for program, solver in zip(few, first, strict=True):
        assert [solver is other for other in second] == [program == other for other in many]
    for solver, program in zip(second, many, strict=True):
        np.testing.assert_array_equal(solver.costs, solvers_on([program], mesh, OPTIONS)[0].costs)
