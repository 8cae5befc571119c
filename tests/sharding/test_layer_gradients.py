"""Every trained parameter has its own gradient and its own optimizer state, and is summed once a step."""

import jax
import jax.numpy as jnp
import optax
import pytest

import layer_models
from alpa_dejavu.layers import cut_into_layers, trace
from alpa_dejavu.sharding import LogicalMesh, ShardingOptions
from alpa_dejavu.sharding.layers import layers_of

WIDTH, DEPTH, BATCH = 32, 6, 8


def small_step(optimizer, half=False, tied=False):
    """Alike weights and biases, so that shapes don't tell them apart."""

    def model(batch_size=BATCH):
        def loss(weights, batch):
            x = batch["x"]
            for weight, bias in weights:
                x = jnp.tanh(x @ weight + bias)
            return ((x @ weights[0][0] if tied else x) ** 2).mean()

        def step(state, batch):
            weights, inner, masters = state
            gradients = jax.grad(loss)(weights, batch)
            if not half:
                updates, inner = optimizer.update(gradients, inner, weights)
                return optax.apply_updates(weights, updates), inner, masters
            wide = jax.tree.map(lambda g: g.astype(jnp.float32), gradients)
            updates, inner = jax.jit(optimizer.update)(wide, inner, masters)
            masters = optax.apply_updates(masters, updates)
            return jax.tree.map(lambda m: m.astype(jnp.float16), masters), inner, masters

        masters = [(jnp.zeros((WIDTH, WIDTH)), jnp.zeros((WIDTH,))) for _ in range(DEPTH)]
        weights = jax.tree.map(lambda m: m.astype(jnp.float16 if half else jnp.float32), masters)
        state = weights, optimizer.init(masters), masters if half else ()
        return step, (state, {"x": jnp.zeros((batch_size, WIDTH), weights[0][0].dtype)})

    return model


def cut(function, num_layers, **options):
    traced = trace(function, batch=BATCH)
    return traced, cut_into_layers(traced, num_layers, **options)


def layers_from(step, known=True):
    return layers_of(
        step.forward, step.backward, step.updates, step.accumulators, step.data,
        gradients=step.gradients if known else None,
    )  # fmt: skip


def states_of(traced, step, layers):
    """The states of each trained parameter, once every gradient was found to be one parameter's."""
    gradients = {p: set(found) for p, found in step.gradients.items()}
    states = {parameter: [] for parameter in traced.gradients}
    for layer in layers:
        for parameter, gradient in layer.gradients.items():
            assert gradient in gradients[parameter]
            gradients[parameter].remove(gradient)
            states[parameter] += layer.states[parameter]
    assert not any(gradients.values()), "gradients of no parameter"
    every = [state for found in states.values() for state in found if state.aval.size > 1]
    assert len(every) == len(set(every)), "a state of two parameters"
    updates = [update for update in step.updates if update is not None]
    jaxprs = [*step.forward, *step.backward, *updates]
    made = {var for jaxpr in jaxprs for var in jaxpr.outvars}
    taken = {var for update in updates for var in update.invars if var.aval.size > 1}
    assert set(every) == taken - made - set(step.accumulators) - set(traced.loss.invars), "a state of no parameter"
    return states


def assert_paired(traced, step, layers, num_states):
    for parameter, found in states_of(traced, step, layers).items():
        assert [state.aval.shape for state in found] == [parameter.aval.shape] * num_states


STEPS = {
    "adam": (small_step(optax.adam(1e-3)), 2),
    "momentum": (small_step(optax.sgd(0.1, momentum=0.9)), 1),
    "plain": (small_step(optax.sgd(0.1)), 0),
    "clipped by the norm of all gradients": (
        small_step(optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))), 2,
    ),
    "half precision": (small_step(optax.adam(1e-3), half=True), 3),
    "half precision, clipped": (
        small_step(optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)), half=True), 3,
    ),
    "used twice": (small_step(optax.adam(1e-3), tied=True), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("remat", ["none", "layer"])
def test_gradients_and_states_of_small_steps(name, num_layers, remat):
    function, num_states = STEPS[name]
    traced, step = cut(function, num_layers, remat=remat)
    assert_paired(traced, step, layers_from(step), num_states)


@pytest.mark.parametrize("name", ["gpt-125m", "moe-380m", "wresnet-250m"])
def test_suites_sum_each_gradient_once_a_step(name):
    traced, step = cut(name, 8)
    layers = layers_from(step)
    states = states_of(traced, step, layers)
    assert all(any(state.aval.shape == p.aval.shape for state in found) for p, found in states.items())
    options = ShardingOptions(force_batch_dim_to_mesh_dim=0)
    stages = layer_models.sharded(layers, LogicalMesh((2, 1), (1.0, 1.0), (1.0, 0.1)), options)
    sent = [one for layer in stages.whole for one in layer.collectives]
    # Layer norms sum the gradients of their half-precision parameters in single precision.
    summed = sum(one.num_bytes * one.count for one in sent if one.phase == "gradient")
    assert summed == pytest.approx(sum(v.aval.size * v.aval.dtype.itemsize for v in traced.gradients), rel=1e-3)
    others = sum(one.num_bytes * one.count for one in sent if one.phase == "backward" and not one.batched)
    assert others < summed / 1000, "but for statistics of batch norms"


@pytest.mark.parametrize("name", ["adam", "momentum", "clipped by the norm of all gradients"])
def test_they_are_found_where_nothing_is_said_of_them(name):
    function, num_states = STEPS[name]
    traced, step = cut(function, 2)
    assert_paired(traced, step, layers_from(step, known=False), num_states)


def test_states_of_other_shapes_are_their_parameters():
    optimizer = optax.adafactor(1e-3, min_dim_size_to_factor=8, momentum=None)
    _, step = cut(small_step(optimizer), 2)
    for layer in layers_from(step):
        for parameter in layer.gradients:
            shapes = sorted(state.aval.shape for state in layer.states[parameter] if state.aval.size > 1)
            assert shapes == [(WIDTH,), (WIDTH,)] if parameter.aval.ndim == 2 else [(WIDTH,)]
