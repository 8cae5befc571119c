"""What waits for what in a pass: nothing runs before its inputs, and collectives are those that are priced."""

import functools

import numpy as np
import pytest

import layer_models
from alpa_dejavu.layers.features.flatten import Flattener, Value
from alpa_dejavu.layers.features.operator_kinds import ALIASES
from alpa_dejavu.problem import AxisCollectives, PassFlow
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions
from layer_models import MODELS, reached

PASSES = ("forward", "backward")


@functools.lru_cache
def solved(model, shape, zero=0):
    layers = MODELS[model]()
    mesh = LogicalMesh(shape, (1.0, 1.0), (1.0, 0.1))
    return layers, layer_models.sharded(layers, mesh, ShardingOptions(force_batch_dim_to_mesh_dim=0), zero).whole


def reads(jaxpr):
    """For each operation that has a record, its primitive and the operations whose results it reads, by the jaxpr."""
    flat = Flattener()
    flat.walk(jaxpr, [Value(var.aval) for var in jaxpr.invars])
    made, found = {}, []
    for step in flat.steps:
        sources = frozenset().union(*(made.get(value, frozenset()) for value in step.inputs))
        if step.primitive not in ALIASES and step.outputs:
            sources, number = frozenset((len(found),)), sources
            found.append((step.primitive, number))
        made.update((value, sources) for value in step.outputs)
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", [(1, 4), (2, 2)])
def test_no_operator_runs_before_its_inputs_and_none_waits_for_itself(model, shape):
    layers, whole = solved(model, shape)
    there = 0
    for layer, sharding in zip(layers, whole, strict=True):
        for phase in PASSES:
            flow, count = sharding.flows.of(phase), len(sharding.cuts(phase))
            if not flow.collectives:
                assert not len(flow.edges)
                continue
            there += 1
            before = reached(flow.edges, count + len(flow.collectives))
            assert not before.diagonal().any()
            of_operators = reads(getattr(layer, phase))
            assert len(of_operators) == count
            missing = [(a, b) for b, (_, sources) in enumerate(of_operators) for a in sources if not before[a, b]]
            assert not missing
    assert there


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("zero", "length"), [(0, 2), (0, 4), (0, 1), (3, 4)])
def test_the_collectives_of_a_flow_are_those_of_the_pass(model, zero, length):
    _, whole = solved(model, (2, 2), zero)
    for sharding in (one.on(length, 1.5) for one in whole):
        for phase in PASSES:
            priced, flowing = {}, {}
            for one in sharding.collectives:
                if one.phase == phase and one.batched:
                    key = one.kind, one.axis
                    priced[key] = priced.get(key, 0.0) + one.num_bytes * one.count
            for one in sharding.flows.of(phase).collectives:
                if one.count:
                    key = one.kind, one.axis
                    flowing[key] = flowing.get(key, 0.0) + one.num_bytes * one.count
            assert flowing == pytest.approx(priced)


def test_products_of_a_block_wait_for_its_sums_but_gradients_of_weights_do_not():
    layers, whole = solved("gpt", (1, 4))
    for phase in PASSES:
        flow, count = whole[1].flows.of(phase), len(whole[1].cuts(phase))
        before = reached(flow.edges, count + len(flow.collectives))
        products = [n for n, (name, _) in enumerate(reads(getattr(layers[1], phase))) if name == "dot_general"]
        assert len(flow.collectives) == 2
        free = [sum(not (before[node, n] or before[n, node]) for n in products) for node in (count, count + 1)]
        # Each all-reduce of a backward pass waits for products that no gradient of a weight beside it waits for.
        assert min(free) >= (0 if phase == "forward" else 1)
        assert phase == "backward" or free == [0, 0]
        for node in (count, count + 1):
            assert before[:count, node].any()
            assert before[node, :count].any()


def test_edges_of_nodes_that_there_are_not_are_refused():
    sent = (AxisCollectives("all_reduce", 1, np.ones(1), np.ones(1)),)
    assert PassFlow(2, sent, np.array([[0, 2]], dtype=np.int32)).num_nodes == 3
    with pytest.raises(ValueError, match="must be of nodes from 0 to 2; number operators first"):
        PassFlow(2, sent, np.array([[0, 3]], dtype=np.int32))


def test_alike_layers_share_a_flow_and_it_is_derived_once():
    _, whole = solved("gpt", (1, 4))
    assert whole[1].flows is whole[2].flows
    assert whole[1].flows.of("forward") is whole[1].flows.of("forward")
    assert whole[1].on(1).flows.of("forward").edges is whole[1].flows.of("forward").edges
