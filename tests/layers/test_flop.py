"""Operations agree with XLA's own count of the module, unrolled where it has loops."""

import jax
import jax.numpy as jnp
import pytest
from jax.extend.random import threefry_2x32

import jax_models
from alpa_dejavu.layers import cut_into_layers, trace
from alpa_dejavu.layers.features import layer_features
from alpa_dejavu.layers.models._sizes import GPT, MoE, WideResNet
from alpa_dejavu.layers.models._transformer import transformer_step
from alpa_dejavu.layers.models._wresnet import wresnet_step


def by_xla(function, *args):
    return jax.jit(function).lower(*args).cost_analysis()["flops"]


def by_us(function, *args):
    return layer_features(jax.make_jaxpr(function)(*args).jaxpr).operators.total_flop


def train_step(loss, parameters, batch):
    """Plain gradient descent."""

    def step(parameters, batch):
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, jax.grad(loss)(parameters, batch))

    return step, (parameters, batch)


STEPS = {
    "gpt": transformer_step(GPT(128, 2, 4, vocabulary=512, sequence=64), 4),
    "moe": transformer_step(MoE(128, 2, 4, num_heads=4, vocabulary=256, sequence=64, group=64), 4),
    "wresnet": wresnet_step(WideResNet(8, 2, (1, 1, 1, 1), classes=16, image=64), 4),
    "convolutions": train_step(jax_models.convolutions, *jax_models.convolution_arguments()),
    "unrolled": train_step(jax_models.unrolled, *jax_models.stacked_arguments()),
}


@pytest.mark.parametrize("name", STEPS)
def test_whole_steps(name):
    """Forward, backward and update: as one jaxpr, and cut into layers whose gradients are accumulated."""
    step, arguments = STEPS[name]
    counted = by_xla(step, *arguments)
    assert by_us(step, *arguments) == pytest.approx(counted, rel=0.01)
    layered = cut_into_layers(trace(lambda: (step, arguments)), 2)
    parts = [*layered.forward, *layered.backward, *filter(None, layered.updates)]
    accumulating = sum(var.aval.size for var in layered.accumulators)
    together = sum(layer_features(part).operators.total_flop for part in parts) - accumulating
    assert together == pytest.approx(counted, rel=0.01)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
def test_a_scan_over_layers_counts_its_trips(wrap):
    arguments = jax_models.stacked_arguments()
    unrolled = by_xla(jax.value_and_grad(jax_models.unrolled, argnums=(0, 1)), *arguments)
    scanned = jax.value_and_grad(wrap(jax_models.scanned), argnums=(0, 1))
    assert by_us(scanned, *arguments) == pytest.approx(unrolled, rel=0.01)


def test_remat_counts_what_is_computed_again():
    weights = jax_models.block_weights()
    x = jnp.zeros((jax_models.BATCH, jax_models.SEQUENCE, jax_models.HIDDEN))

    def loss(weights, x):
        return (jax.checkpoint(jax_models.block)(weights, x) ** 2).sum()

    step = jax.value_and_grad(loss, argnums=(0, 1))
    assert by_us(step, weights, x) == pytest.approx(by_xla(step, weights, x), rel=0.01)


def with_vjp(function):
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(lambda w, x: (function(w, x), (w, x)), lambda kept, g: jax.vjp(function, *kept)[1](g))
    return wrapped


@pytest.mark.parametrize(
    "through",
    [
        jax.jit,
        with_vjp,
        lambda f: lambda w, x: jax.lax.cond(x[0, 0, 0] > 0, lambda: f(w, x), lambda: x),
        lambda f: lambda w, x: jax.lax.switch(2, [lambda: x, lambda: x[::-1], lambda: f(w, x), lambda: jnp.sin(x)]),
        lambda f: lambda w, x: jax.lax.while_loop(lambda c: c[0, 0, 0] < 1, lambda c: f(w, c), x),
    ],
)
def test_calls_and_branches(through):
    weights = jax_models.block_weights()
    x = jnp.zeros((jax_models.BATCH, jax_models.SEQUENCE, jax_models.HIDDEN))
    assert by_us(through(jax_models.block), weights, x) == pytest.approx(by_xla(jax_models.block, weights, x), rel=0.01)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.argmax(x, -1),
        lambda x: jnp.cumsum(x, 1),
        lambda x: x.sum(-1),
        lambda x: x**3,
        lambda x: x**-2,
        jax.nn.sigmoid,
        jax.scipy.special.erfinv,
        lambda x: jnp.sort(x, -1),
        lambda x: x.astype(jnp.float16),
        lambda x: jnp.zeros((512, 128)).at[jnp.arange(64)].add(x),
        lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (3, 3), (2, 2), "SAME"),
        lambda x: jax.vjp(lambda y: jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "SAME"), x)[0],
    ],
)
def test_single_operations(function):
    x = jnp.ones((64, 128))
    assert by_us(function, x) == pytest.approx(by_xla(function, x), rel=0.01)


@pytest.mark.parametrize(
    "function", [threefry_2x32, lambda key, x: jax.random.bits(jax.random.wrap_key_data(key), x.shape)]
)
@pytest.mark.parametrize("partitionable", [False, True])
def test_random_numbers_count_their_rounds(function, partitionable):
    """They are a loop on CPUs, which XLA counts a trip of; elsewhere they are unrolled."""
    arguments = jnp.zeros(2, jnp.uint32), jnp.zeros(4096, jnp.uint32)
    with jax.threefry_partitionable(partitionable):
        unrolled = jax.jit(function).trace(*arguments).lower(lowering_platforms=("tpu",))
        assert by_us(function, *arguments) == pytest.approx(unrolled.cost_analysis()["flops"], rel=0.01)


@pytest.mark.parametrize(
    ("padding", "stride", "base", "window"),
    [
        ("SAME", (1, 1), (1, 1), (1, 1)),
        ("VALID", (1, 1), (1, 1), (1, 1)),
        ("SAME", (2, 3), (1, 1), (2, 1)),
        ([(3, 1), (0, 2)], (1, 1), (1, 1), (1, 1)),
        ([(3, 1), (0, 2)], (2, 3), (1, 2), (2, 1)),
    ],
)
def test_convolutions_leave_out_padding_and_holes(padding, stride, base, window):
    def convolve(x, kernel):
        return jax.lax.conv_general_dilated(
            x, kernel, stride, padding, base, window, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    arguments = jnp.zeros((2, 9, 11, 4)), jnp.zeros((3, 3, 4, 6))
    assert by_us(convolve, *arguments) == by_xla(convolve, *arguments)


def test_a_conds_heaviest_branch_counts():
    """XLA counts the most of what any branch has: one product more than many small operations."""

    def many(x):
        for _ in range(10):
            x = jnp.sin(x) + 1
        return x

    def function(x):
        product = jax.lax.cond(x[0, 0] > 1, many, lambda x: x @ x, x)
        scanned = jax.lax.cond(x[0, 1] > 1, many, lambda x: jax.lax.fori_loop(0, 3, lambda _, x: x * 2, x), x)
        return product, scanned

    x = jnp.ones((64, 64))
    assert by_us(function, x) == pytest.approx(by_xla(lambda x: (x @ x, many(x)), x), rel=0.01)
