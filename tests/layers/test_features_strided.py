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
