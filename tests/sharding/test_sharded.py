"""A model divided as the sharding engine divides it: what is computed, sent and kept, on any mesh and micro-batch."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.layers import trace
from alpa_dejavu.layers.micro_batch import with_micro_batch
from alpa_dejavu.problem import MeshConfig
from alpa_dejavu.sharding import model_of_step
from alpa_dejavu.sharding.layers import StageLayers

BLOCKS, HIDDEN, BATCH = 4, 128, 16


def blocks(batch_size=BATCH):
    """Blocks of two products, with momentum: one more number for each parameter."""
    up, down = jnp.zeros((HIDDEN, 4 * HIDDEN)), jnp.zeros((4 * HIDDEN, HIDDEN))
    weights = [(up, down) for _ in range(BLOCKS)]

    def step(state, batch):
        def loss(weights):
            x = batch
            for up, down in weights:
                x = jnp.tanh(x + jax.nn.relu(x @ up) @ down)
            return (x**2).mean()

        gradients = jax.grad(loss)(state[0])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state[1], gradients)
        return jax.tree.map(lambda w, m: w - 0.1 * m, state[0], momentum), momentum

    return step, ((weights, jax.tree.map(jnp.zeros_like, weights)), jnp.zeros((batch_size, HIDDEN)))


@functools.cache
def model():
    return model_of_step(trace(blocks, batch=BATCH), BLOCKS)


def on(data_parallel, tensor_parallel, zero=0, of=None, forced=True):
    whole = of or model()
    options = {"force_batch_dim_to_mesh_dim": 0} if forced else {}
    shape = data_parallel, tensor_parallel
    return whole.sharding.on(whole.layers, MeshConfig(shape, *shape, options=options, zero=zero))


def sent(exchanges, kind, axis):
    """Bytes of a kind along an axis; of the whole range of layers where they are by range."""
    found = 0.0
    for one in exchanges:
        if (one.kind, one.axis) == (kind, axis):
            found += float(one.num_bytes[0, -1] if one.num_bytes.ndim == 2 else one.num_bytes @ one.counts)
    return found


def test_data_parallel_devices_divide_the_batch_and_add_up_all_gradients_once():
    apart = on(4, 1)
    for n, layer in enumerate(model().layers):
        assert apart.operators("forward")[n].product_flop == pytest.approx(layer.forward.product_flop / 4)
        assert apart.operators("backward")[n].product_flop == pytest.approx(layer.backward.product_flop / 4)
        assert sent(apart.exchanges(n, "backward"), "all_reduce", 0) == 0
    assert sent(apart.combined("step"), "all_reduce", 0) == pytest.approx(model().parameter_bytes)
    assert apart.memory().parameters[0, -1] == pytest.approx(1)
    assert apart.memory().activations[0, -1] == pytest.approx(1 / 4, rel=0.05)


@pytest.mark.parametrize("batched", [False, True])
def test_replicas_divide_a_mask_that_is_broadcast_along_the_batch(batched):
    """A choice keeps its mask for the backward pass, spread out to what it chooses from; each replica has its part."""

    def masked(batch_size):
        def step(weight, batch):
            def loss(weight):
                x = batch @ weight
                shape = (*batch.shape[:1], 1, HIDDEN, HIDDEN) if batched else (HIDDEN, HIDDEN)
                mask = jnp.broadcast_to(jnp.tril(jnp.ones((HIDDEN, HIDDEN), bool)), shape)
                scores = jnp.where(mask, jnp.einsum("bhqd,bhkd->bhqk", x, x), -1e9)
                return jnp.square(jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), x)).mean()

            return weight - 0.1 * jax.grad(loss)(weight)

        return step, (jnp.zeros((8, 8)), jnp.zeros((batch_size, 2, HIDDEN, 8)))

    whole = model_of_step(trace(masked, batch=BATCH), 1)
    for replicas in (2, 8):
        apart = on(replicas, 1, of=whole)
        assert apart.memory().activations[0, 0] == pytest.approx(1 / replicas, rel=0.01)
        moved = apart.operators("forward")[0].written_bytes.sum() / whole.layers[0].forward.written_bytes.sum()
        assert moved == pytest.approx(1 / replicas, rel=0.05)


def test_tensor_parallel_devices_add_up_once_a_block_in_each_pass():
    along = on(1, 2)
    activation = BATCH * HIDDEN * 4
    for phase in ("forward", "backward"):
        assert sent(along.exchanges(1, phase), "all_reduce", 1) == pytest.approx(activation)
    assert along.operators("forward")[1].product_flop == pytest.approx(model().layers[1].forward.product_flop / 2)
    assert along.memory().parameters[0, -1] == pytest.approx(1 / 2)
    assert sent(along.combined("step"), "all_reduce", 0) == 0


def test_zero_shares_states_then_parameters():
    second, third = on(4, 1, 2), on(4, 1, 3)
    assert second.memory().optimizer[0, -1] == pytest.approx(1 / 4, rel=0.05)
    assert second.memory().parameters[0, -1] == pytest.approx(1)
    assert third.memory().parameters[0, -1] == pytest.approx(1 / 4, rel=0.05)
    whole = model().parameter_bytes
    assert sent(second.combined("step"), "reduce_scatter", 0) == pytest.approx(whole, rel=0.05)
    assert sent(second.combined("step"), "all_gather", 0) == pytest.approx(whole, rel=0.05)
    for phase in ("forward", "backward"):
        assert sent(third.combined(phase), "all_gather", 0) == pytest.approx(whole, rel=0.05)


def test_a_layer_may_be_divided_otherwise_in_one_stage_than_in_another():
    division = on(2, 2)
    assert division.of_stages is None
    size = len(division.whole)
    of_stages = np.full((size, size, size), -1)
    for i, j in zip(*np.triu_indices(size), strict=True):
        of_stages[i, j, i : j + 1] = range(i, j + 1)
    of_stages[1, 1, 1] = size
    layers = (*division.layers.variants, division.layers.variants[1].on(2, 3.0))
    stages = StageLayers(layers, (*division.layers.numbers, 1), of_stages)
    other = dataclasses.replace(division, layers=stages)
    assert sent(other.exchanges(size, "forward"), "all_reduce", 1) == pytest.approx(
        3 * sent(other.exchanges(1, "forward"), "all_reduce", 1)
    )
    activations, before = other.memory().activations, division.memory().activations
    assert activations[1, 1] == pytest.approx(3 * before[1, 1])
    assert activations[0, 2] == pytest.approx(before[0, 2])


def doubling(batch_size=BATCH):
    """Blocks whose backward passes read twice their input, and not their input."""
    weights = [jnp.zeros((HIDDEN, HIDDEN)) for _ in range(BLOCKS)]

    def step(weights, batch):
        def loss(weights):
            x = batch
            for weight in weights:
                x = jnp.tanh((2 * x) @ weight)
            return (x**2).mean()

        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights))

    return step, (weights, jnp.zeros((batch_size, HIDDEN)))


def test_one_device_does_all_and_sends_nothing():
    alone = on(1, 1)
    for n, layer in enumerate(model().layers):
        assert alone.operators("forward")[n].total_flop == layer.forward.total_flop
        assert alone.operators("backward")[n].total_flop == layer.backward.total_flop
        assert not any(len(alone.exchanges(n, phase)) for phase in ("forward", "backward"))
    assert not any(len(alone.combined(phase)) for phase in ("forward", "backward", "step"))
    assert np.allclose(np.triu(alone.memory().parameters), np.triu(np.ones((BLOCKS, BLOCKS))))


@pytest.mark.parametrize("replicas", [2, 8])
def test_replicas_divide_the_inputs_of_layers_that_are_computed_again(replicas):
    made = model_of_step(trace(doubling, batch=BATCH), BLOCKS)
    shares = on(replicas, 1, of=made).memory("layer").layer_inputs
    assert np.triu(shares) == pytest.approx(np.triu(np.full((BLOCKS, BLOCKS), 1 / replicas)))


def test_a_larger_micro_batch_sends_more_for_itself_and_the_same_once_a_step():
    larger = with_micro_batch(model(), 2.0)
    one, two = on(2, 2), on(2, 2, of=larger)
    before, after = (sent(each.exchanges(1, "forward"), "all_reduce", 1) for each in (one, two))
    assert after == pytest.approx(2 * before)
    assert before > 0
    before, after = (sent(each.combined("step"), "all_reduce", 0) for each in (one, two))
    assert after == before > 0
    assert two.operators("forward")[1].product_flop == pytest.approx(2 * one.operators("forward")[1].product_flop)
