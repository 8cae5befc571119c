"""Operator records of jaxprs: counts against XLA's own, and through every kind of nesting."""

import jax
import jax.numpy as jnp
import pytest

from alpa_dejavu.layers.features import describe, layer_features

HIDDEN = jnp.zeros((8, 64))
WEIGHTS = (jnp.zeros((64, 256)), jnp.zeros((256, 64)))


def block(weights, x):
    return x + jax.nn.relu(x @ weights[0]) @ weights[1]


def features_of(function, *args, num_parameters=0):
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    return layer_features(jaxpr, set(jaxpr.invars[:num_parameters]))


def product_flop(function, *args):
    return features_of(function, *args).operators.product_flop


def test_flop_is_what_xla_counts():
    counted = jax.jit(block).lower(WEIGHTS, HIDDEN).compile().cost_analysis()
    counted = counted[0] if isinstance(counted, list) else counted
    assert features_of(block, WEIGHTS, HIDDEN).operators.total_flop == pytest.approx(counted["flops"], rel=0.01)


def test_convolution_flop_is_what_xla_counts():
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", feature_group_count=2)

    args = jnp.zeros((2, 4, 9, 9)), jnp.zeros((6, 2, 3, 3))
    counted = jax.jit(convolve).lower(*args).compile().cost_analysis()
    counted = counted[0] if isinstance(counted, list) else counted
    assert features_of(convolve, *args).operators.total_flop == pytest.approx(counted["flops"], rel=0.01)


def with_jvp(function):
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: (function(*primals), tangents[1]))
    return wrapped


def with_vjp(function):
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(lambda w, x: (function(w, x), None), lambda _, g: (WEIGHTS, g))
    return wrapped


ONCE = 2 * 2 * 8 * 64 * 256


@pytest.mark.parametrize(
    ("wrap", "times"),
    [
        (jax.jit, 1),
        (jax.checkpoint, 1),
        (with_jvp, 1),
        (with_vjp, 1),
        (lambda f: lambda w, x: jax.lax.scan(lambda c, _: (f(w, c), None), x, None, length=5)[0], 5),
        (lambda f: lambda w, x: jax.lax.fori_loop(0, 3, lambda _, c: f(w, c), x), 3),
        (lambda f: lambda w, x: jax.lax.while_loop(lambda c: c[0, 0] < 1, lambda c: f(w, c), x), 1),
        (lambda f: lambda w, x: jax.lax.cond(x[0, 0] > 0, lambda: f(w, x), lambda: x), 1),
        (lambda f: jax.jit(jax.checkpoint(jax.jit(f))), 1),
    ],
)
def test_nested_products_count_by_their_trips(wrap, times):
    assert product_flop(wrap(block), WEIGHTS, HIDDEN) == times * ONCE


def test_gradient_of_remat_computes_again():
    def loss(weights, x):
        return block(weights, x).sum()

    plain = product_flop(jax.grad(loss), WEIGHTS, HIDDEN)
    again = product_flop(jax.grad(jax.checkpoint(loss)), WEIGHTS, HIDDEN)
    assert again > plain


def test_element_wise_loops_stay_out_of_memory():
    def chain(x):
        return jnp.tanh(x * 2 + 1) - 3

    operators = features_of(chain, HIDDEN).operators
    assert operators.read_bytes.sum() == HIDDEN.nbytes
    assert operators.written_bytes.sum() == HIDDEN.nbytes


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


def test_a_feed_forward_block_exchanges_the_hidden_state_twice():
    assert features_of(block, WEIGHTS, HIDDEN, num_parameters=2).exchanged_bytes == (HIDDEN.nbytes, HIDDEN.nbytes)
    assert features_of(block, WEIGHTS, HIDDEN).exchanged_bytes == ()


def chain_of_layers():
    """Two layers by hand: y = x w0; z = y w1, and their backward ones with accumulators."""
    w, x = jnp.zeros((16, 16)), jnp.zeros((4, 16))
    first = jax.make_jaxpr(lambda w, x: x @ w)(w, x).jaxpr
    second = jax.make_jaxpr(lambda w, x: (x @ w).sum())(w, x).jaxpr
    return first, second


def test_layers_must_match():
    first, second = chain_of_layers()
    with pytest.raises(ValueError, match="zero layers"):
        describe([])
    with pytest.raises(ValueError, match="2 layers but 1 backward"):
        describe([first, second], [first])


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
