"""Train steps as users of Flax write them: with a train state, dropout, clipping, loss scaling, under jit."""

import jax
import jax.numpy as jnp
import optax
import pytest

from alpa_dejavu.layers import trace
from alpa_dejavu.sharding import model_of_step

nn = pytest.importorskip("flax.linen")
dynamic_scale = pytest.importorskip("flax.training.dynamic_scale")
train_state = pytest.importorskip("flax.training.train_state")

WIDTH, BLOCKS, BATCH = 16, 3, 8


class Network(nn.Module):
    """Blocks that are alike, each of which may be rematerialised."""

    remat: bool = False

    @nn.compact
    def __call__(self, x):
        dense = nn.remat(nn.Dense) if self.remat else nn.Dense
        for _ in range(BLOCKS):
            y = nn.gelu(dense(2 * WIDTH)(nn.LayerNorm()(x)))
            x = x + nn.Dropout(0.1, deterministic=False)(dense(WIDTH)(y))
        return x


def plain_gradient(loss, parameters):
    return jax.value_and_grad(loss)(parameters)


def scaled_gradient(loss, parameters):
    _, _, value, gradients = dynamic_scale.DynamicScale().value_and_grad(loss)(parameters)
    return value, gradients


def train_step(network, optimizer, gradient):
    def function(batch_size=BATCH):
        key = jax.eval_shape(lambda: jax.random.PRNGKey(0))

        def create(key, x):
            variables = network.init({"params": key, "dropout": key}, x)
            return train_state.TrainState.create(apply_fn=network.apply, params=variables["params"], tx=optimizer)

        @jax.jit
        def step(state, batch):
            def loss(parameters):
                answer = state.apply_fn({"params": parameters}, batch["x"], rngs={"dropout": batch["key"]})
                return ((answer - batch["y"]) ** 2).mean()

            value, gradients = gradient(loss, state.params)
            return state.apply_gradients(grads=gradients), value

        x = jax.ShapeDtypeStruct((batch_size, WIDTH), jnp.float32)
        return step, (jax.eval_shape(create, key, x), {"x": x, "y": x, "key": key})

    return function


@pytest.mark.parametrize(
    ("network", "optimizer", "gradient"),
    [
        (Network(), optax.adamw(1e-3), plain_gradient),
        (Network(remat=True), optax.adamw(1e-3), plain_gradient),
        (Network(), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)), plain_gradient),
        (Network(), optax.adamw(1e-3), scaled_gradient),
    ],
    ids=["plain", "remat", "clipped", "scaled"],
)
def test_the_model_of_a_train_state(network, optimizer, gradient):
    model = model_of_step(trace(train_step(network, optimizer, gradient), batch=2 * BATCH, num_micro_batches=2), 3)
    held = {}
    for tensor in model.tensors:
        held[tensor.role] = held.get(tensor.role, 0) + tensor.num_bytes
    block = 2 * 2 * WIDTH * WIDTH + 3 * WIDTH + 2 * WIDTH
    parameters, counts, key = 4 * BLOCKS * block, 2 * 4, 8
    assert held["parameter"] == held["gradient"] == parameters
    assert held["optimizer"] == 2 * parameters + counts
    assert held["input"] == 2 * BATCH * WIDTH * 4 + key
    product = 2 * BATCH * WIDTH * 2 * WIDTH
    assert [layer.forward.product_flop for layer in model.layers] == [2 * product] * BLOCKS
    assert all(layer.backward.product_flop >= 4 * product for layer in model.layers)
    assert all(layer.update.total_flop > 0 for layer in model.layers)
