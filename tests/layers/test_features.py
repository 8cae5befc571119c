"""Operator records of jaxprs, and which part of a backward pass only gradients of weights need."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_models
from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.costs.stage_costs import COST_KINDS, StageCostModel
from alpa_dejavu.layers import trace
from alpa_dejavu.layers.features import describe, layer_features
from alpa_dejavu.layers.features.flatten import Flattener, Value
from alpa_dejavu.sharding.solved import model_of_step
from alpa_dejavu.testing import example_cluster

HIDDEN = jnp.zeros((8, 64))
WEIGHTS = (jnp.zeros((64, 256)), jnp.zeros((256, 64)))


def block(weights, x):
    return x + jax.nn.relu(x @ weights[0]) @ weights[1]


def features_of(function, *args, num_parameters=0):
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return layer_features(jaxpr, set(jaxpr.invars[:num_parameters]))


def test_element_wise_loops_stay_out_of_memory():
    def chain(x):
        return jnp.tanh(x * 2 + 1) - 3

    operators = features_of(chain, HIDDEN).operators
    assert operators.read_bytes.sum() == HIDDEN.nbytes
    assert operators.written_bytes.sum() == HIDDEN.nbytes


@pytest.mark.skipif(not hasattr(jax.lax, "split"), reason="this jax has no such primitive")
def test_a_split_is_so_many_slices():
    flat = Flattener()
    values = jax.make_jaxpr(lambda x: jax.lax.split(x, (1, 4, 3), axis=0))(HIDDEN)
    flat.walk(values.jaxpr, [Value(var.aval) for var in values.jaxpr.invars])
    assert [step.primitive for step in flat.steps] == ["slice"] * 3
    rows = [(step.params["start_indices"][0], step.params["limit_indices"][0]) for step in flat.steps]
    assert rows == [(0, 1), (1, 5), (5, 8)]


def test_a_feed_forward_block_exchanges_the_hidden_state_twice():
    assert features_of(block, WEIGHTS, HIDDEN, num_parameters=2).exchanged_bytes == (HIDDEN.nbytes, HIDDEN.nbytes)
    assert features_of(block, WEIGHTS, HIDDEN).exchanged_bytes == ()


def chain_of_layers():
    """Two layers by hand: y = x w0; z = y w1, and their backward ones with accumulators."""
    w, x = jnp.zeros((16, 16)), jnp.zeros((4, 16))
    first = jax.make_jaxpr(lambda w, x: x @ w)(w, x).jaxpr
    second = jax.make_jaxpr(lambda w, x: (x @ w).sum())(w, x).jaxpr
    return first, second


def test_roles_by_the_micro_batch():
    first, _ = chain_of_layers()
    model = describe([first], micro_batch=4)
    assert {tensor.role: tensor.num_bytes for tensor in model.tensors} == {"parameter": 1024, "input": 256}
    assert not model.training
    assert {tensor.role for tensor in describe([first]).tensors} == {"input"}


def test_parameters_and_gradients_have_no_batch():
    def backward(weight, accumulated, x, g):
        return g @ weight.T, accumulated + x.T @ g

    x, weight = jnp.zeros((8, 16)), jnp.zeros((16, 32))
    jaxpr = jax.make_jaxpr(backward)(weight, weight, x, jnp.zeros((8, 32))).jaxpr
    found = layer_features(jaxpr, jaxpr.invars[:1], jaxpr.invars[1:2], jaxpr.outvars[1:])
    by_name = {record.output_shapes: record for record in found.operators.records if record.kind == "dot"}
    (add,) = [record for record in found.operators.records if record.primitive == "add"]
    assert by_name[((8, 16),)].unbatched_read_bytes == weight.nbytes
    assert by_name[((8, 16),)].unbatched_written_bytes == 0
    assert by_name[((16, 32),)].unbatched_read_bytes == 0
    assert by_name[((16, 32),)].unbatched_written_bytes == weight.nbytes
    assert add.unbatched_flop == add.flop
    assert add.unbatched_read_bytes == add.read_bytes == 2 * weight.nbytes
    assert add.unbatched_written_bytes == add.written_bytes


def test_what_a_forward_pass_keeps_is_passed_once_by_each_pass():
    def left(x, y):
        product = x @ y
        return product, jnp.tanh(product) + x, jnp.sin(x) @ x

    x = jnp.zeros((16, 16))
    jaxpr = jax.make_jaxpr(left)(x, x).jaxpr
    # One operand is read four times.
    for places in ((), (0,), (1,), (0, 1)):
        passed = [jaxpr.invars[n] for n in places]
        assert layer_features(jaxpr, recalled=passed).operators.passed_bytes.sum() == len(places) * x.nbytes
        passed = [jaxpr.outvars[n] for n in places]
        assert layer_features(jaxpr, kept=passed).operators.passed_bytes.sum() == len(places) * x.nbytes


def test_products_go_through_memory():
    operators = features_of(lambda x, w: jnp.tanh(x @ w), HIDDEN, WEIGHTS[0]).operators
    result = 8 * 256 * 4
    assert operators.written_bytes.tolist() == [result, result]
    assert operators.read_bytes.tolist() == [HIDDEN.nbytes + WEIGHTS[0].nbytes, result]


def test_temporaries_are_what_lives_inside():
    def two(x, w0, w1):
        return (x @ w0) @ w1

    assert features_of(two, HIDDEN, *WEIGHTS).temporary_bytes == 8 * 256 * 4
    assert features_of(lambda x: x * 2, HIDDEN).temporary_bytes == 0


def test_layers_must_match():
    first, second = chain_of_layers()
    with pytest.raises(ValueError, match="zero layers"):
        describe([])
    with pytest.raises(ValueError, match="2 layers but 1 backward"):
        describe([first, second], [first])


def test_a_model_knows_what_its_forward_passes_keep():
    weight, x = jnp.zeros((16, 16)), jnp.zeros((8, 16))
    forward = jax.make_jaxpr(lambda weight, x: (jnp.tanh(x @ weight), jnp.cos(x)))(weight, x).jaxpr
    backward = jax.make_jaxpr(lambda weight, kept, cotangent: (cotangent * kept) @ weight.T)(weight, x, x).jaxpr
    same = dict(zip(backward.invars, (forward.invars[0], forward.outvars[1]), strict=False))
    equations = [eqn.replace(invars=[same.get(var, var) for var in eqn.invars]) for eqn in backward.eqns]
    backward = backward.replace(invars=[*same.values(), backward.invars[2]], eqns=equations)
    (layer,) = describe([forward], [backward], [None], data={forward.invars[1]}).layers
    # The other result goes on to the next layer, and the cotangent comes from there.
    assert (layer.forward.passed_bytes.sum(), layer.backward.passed_bytes.sum()) == (x.nbytes, x.nbytes)


def by_weight(operators):
    return float((operators.flop * operators.count)[operators.by_weight].sum())


def flop_of_gradients(loss, by, arguments):
    """By XLA, of the gradients by some arguments alone."""
    return jax.jit(jax.grad(loss, argnums=by)).lower(*arguments).cost_analysis()["flops"]


@pytest.mark.parametrize(
    ("loss", "arguments"),
    [
        (jax_models.mlp, jax_models.mlp_arguments()),
        (jax_models.unrolled, jax_models.stacked_arguments()),
        (jax_models.convolutions, jax_models.convolution_arguments(3)),
    ],
)
def test_it_is_what_a_pass_by_inputs_alone_leaves_out(loss, arguments):
    """One layer, whose operands have gradients that others wait for."""
    jaxpr = jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*arguments).jaxpr
    count = len(jax.tree.leaves(arguments[0]))
    found = by_weight(layer_features(jaxpr, gradients=jaxpr.outvars[:count]).operators)
    both, by_inputs = (flop_of_gradients(loss, by, arguments) for by in ((0, 1), 1))
    assert found == pytest.approx(both - by_inputs, rel=0.02)
    assert by_weight(layer_features(jaxpr).operators) == 0


def test_of_the_first_layer_nobody_waits_for_anything():
    step, arguments = jax_models.trained(64, depth=6)
    model = model_of_step(trace(lambda: (step, arguments)), 3)
    first, middle, _ = (layer.backward for layer in model.layers)
    assert by_weight(first) == pytest.approx(first.total_flop)
    assert (middle.by_weight & middle.is_product).sum() == middle.is_product.sum() / 2
    assert not any(layer.forward.by_weight.any() or layer.update.by_weight.any() for layer in model.layers)


def test_its_seconds_are_a_part_of_the_backward_pass():
    step, arguments = jax_models.trained(64, depth=6)
    model, cluster = model_of_step(trace(lambda: (step, arguments)), 3), example_cluster(1)
    costs = StageCostModel(model, cluster, CostModels.named())
    space = search_space(cluster, 64)
    for submesh, row in zip(space.submeshes, space.configs, strict=True):
        devices = costs.places.on_submesh(submesh)
        for config in filter(None, row):
            backward = costs.seconds(devices, config)[COST_KINDS.index("compute_backward_s")]
            part = costs.by_weight_shares(devices, config) * backward
            upper = np.triu_indices(3)
            assert (part[upper] > 0).all()
            assert (part[upper] < backward[upper]).all()
            if config.remat == "none":
                assert part[0, 0] == pytest.approx(backward[0, 0] - cluster.hosts[0].device.dispatch_s, rel=1e-5)
