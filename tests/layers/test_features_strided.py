"""What is read against its order in memory: operands that XLA's CPU compiler brings into another order."""

import jax
import jax.numpy as jnp
import pytest

from alpa_dejavu.layers.features import layer_features

X = jnp.zeros((4, 8, 16))


def strided_bytes(function, *args):
    """Of each matrix product, and of all other operators together."""
    operators = layer_features(jax.make_jaxpr(function)(*args).jaxpr).operators
    products = operators.strided_bytes[operators.is_product].tolist()
    return products, float(operators.strided_bytes[~operators.is_product].sum())


def cache_bytes(function, *args):
    """Of all operators that read something against its order."""
    operators = layer_features(jax.make_jaxpr(function)(*args).jaxpr).operators
    return operators.strided_cache_bytes[operators.strided_bytes > 0].tolist()


def test_a_gradient_by_weights_over_two_dimensions_copies_its_first_operand():
    gradient = jnp.zeros((4, 8, 32))
    contracted = lambda g, x: jax.lax.dot_general(g, x, (((0, 1), (0, 1)), ((), ())))  # noqa: E731
    assert strided_bytes(contracted, gradient, X) == ([gradient.nbytes], 0.0)


@pytest.mark.parametrize(
    ("rows", "columns", "each"),
    [
        (128, 8, 32),  # two rows have a line between them
        (128, 16, 64),
        (128, 25, 64),  # 100 bytes apart, lines lie anywhere
        (128, 48, 64),  # three lines apart, they have all places of a cache
        (128, 96, 128),  # six lines apart, every second place
        (64, 1024, 4096),
    ],
)
def test_lines_take_the_cache_up_to_the_power_of_two_in_their_distance(rows, columns, each):
    assert cache_bytes(lambda x: x.T + 1, jnp.zeros((rows, columns))) == [rows * each]


def test_convolutions_over_holes_are_known():
    def convolution(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    image, kernel = jnp.zeros((1, 8, 8, 4)), jnp.zeros((3, 3, 4, 4))
    gradient = jax.grad(lambda x: convolution(x, kernel).sum())
    for function, dilated in ((lambda x: convolution(x, kernel), False), (gradient, True)):
        operators = layer_features(jax.make_jaxpr(function)(image).jaxpr).operators
        assert bool((operators.is_dilated & operators.is_product).any()) == dilated


WEIGHT = jnp.zeros((16, 32))


def test_plain_products_and_batches_of_them_read_in_order():
    assert strided_bytes(lambda x, w: x @ w, X, WEIGHT) == ([0.0], 0.0)
    assert strided_bytes(lambda x, w: x.T @ w, jnp.zeros((8, 16)), jnp.zeros((8, 4))) == ([0.0], 0.0)
    assert strided_bytes(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), X, jnp.zeros((4, 16, 2))) == ([0.0], 0.0)


def test_the_copy_evaluates_the_loop_that_makes_its_operand_again():
    def contracted(g, slope, mask, bias, x):
        return jax.lax.dot_general(g * slope * mask + bias, x, (((0, 1), (0, 1)), ((), ())))

    large, small = jnp.zeros((4, 8, 32)), jnp.zeros(32)
    assert strided_bytes(contracted, large, large, large, small, X) == ([3 * large.nbytes], 0.0)

    def expensive(g, slope, mask, bias, x):
        return contracted(jnp.tanh(g), slope, mask, bias, x)

    assert strided_bytes(expensive, large, large, large, small, X) == ([large.nbytes], 0.0)


def test_attention_moves_the_keys_last_dimension():
    heads = jnp.zeros((2, 8, 4, 16))
    (moved,), rest = strided_bytes(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), heads, heads)
    assert (moved, rest) == (heads.nbytes, 0.0)


def test_loops_over_transposed_values_read_them_against_their_order():
    assert strided_bytes(lambda x: x.T + 1, jnp.zeros((8, 16))) == ([], 8 * 16 * 4.0)
    assert strided_bytes(lambda x: jnp.transpose(x, (1, 0, 2)) + 1, X) == ([], 0.0)


def test_lines_are_read_again_after_the_dimensions_that_are_now_inside():
    gradient = jnp.zeros((4, 8, 32))
    contracted = lambda g, x: jax.lax.dot_general(g, x, (((0, 1), (0, 1)), ((), ())))  # noqa: E731
    assert cache_bytes(contracted, gradient, X) == [4 * 8 * 128]
    heads = jnp.zeros((2, 8, 4, 16))
    # The keys' positions are inside, each 4 heads of 16 elements after the one before.
    assert cache_bytes(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), heads, heads) == [8 * 256]


def test_what_is_empty_takes_no_cache():
    contracted = lambda g, x: jax.lax.dot_general(g, x, (((0, 1), (0, 1)), ((), ())))  # noqa: E731
    empty = jnp.zeros((0, 8, 16))
    assert strided_bytes(contracted, empty, empty) == ([0.0], 0.0)
    assert cache_bytes(contracted, empty, empty) == []


def test_sums_over_all_but_the_last_dimension_are_read_against_their_order():
    assert strided_bytes(lambda x: x.sum((0, 1)), X) == ([], X.nbytes)
    assert cache_bytes(lambda x: x.sum((0, 1)), X) == [4 * 8 * 64]
    assert strided_bytes(lambda x: x.sum((1, 2)), X) == strided_bytes(lambda x: x.sum(), X) == ([], 0.0)


def test_the_transposed_product_of_two_matrices_is_computed_the_other_way_round():
    def accumulated(total, x, weight, cotangent):
        _, pull = jax.vjp(lambda weight: x @ weight, weight)
        return total + pull(cotangent)[0]

    for x, cotangent in ((jnp.zeros((8, 16)), jnp.zeros((8, 32))), (X, jnp.zeros((4, 8, 32)))):
        _, rest = strided_bytes(accumulated, WEIGHT, x, WEIGHT, cotangent)
        assert rest == 0.0
        text = jax.jit(accumulated).lower(WEIGHT, x, WEIGHT, cotangent).compile().as_text()
        assert "f32[16,32]{0,1}" not in text, "nor does XLA make it in the other order"


def test_a_transposed_product_that_is_read_both_ways_or_has_a_batch_is_read_against_its_order():
    def both_ways(x):
        product = x @ x
        return product.T + 1, product + 1

    square, batch = jnp.zeros((16, 16)), jnp.zeros((2, 8, 8))
    assert strided_bytes(lambda x: (x @ x).T + 1, square) == ([0.0], 0.0)
    assert strided_bytes(both_ways, square) == ([0.0], square.nbytes)
    assert strided_bytes(lambda x: jnp.swapaxes(x @ x, 1, 2) + 1, batch) == ([0.0], batch.nbytes)
