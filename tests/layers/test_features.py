"""Operator records of jaxprs, and which part of a backward pass only gradients of weights need."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from alpa_dejavu.layers.features import describe, layer_features

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
