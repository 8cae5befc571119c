"""On a mesh, random numbers are those that one device draws from the same keys, cut or not, computed again or not."""

import re

import alpa
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from alpa.device_mesh import LocalPhysicalDeviceMesh
from alpa.model.model_util import TrainState

SHAPE = (16, 8)
SAMPLERS = (
    jax.random.normal,
    jax.random.uniform,
    jax.random.bits,
    lambda key, shape: jax.random.bernoulli(key, 0.3, shape),
    lambda key, shape: jax.random.truncated_normal(key, -1, 1, shape),
    lambda key, shape: jax.random.randint(key, shape, 0, 10),
    lambda key, shape: jax.random.categorical(key, jnp.arange(128.0).reshape(shape) / 64),
    lambda key, shape: jax.random.permutation(key, shape[0]),
    lambda key, shape: jax.random.bits(key, (5, 3), "uint8"),
)


@pytest.fixture
def partitionable(request):
    before = jax.config.jax_threefry_partitionable
    jax.config.update("jax_threefry_partitionable", request.param)
    yield request.param
    jax.config.update("jax_threefry_partitionable", before)


def mesh_of(shape):
    return LocalPhysicalDeviceMesh(jax.devices()[: shape[0] * shape[1]]).get_logical_mesh(shape)


def parallel(function, shape=(2, 2), **more):
    return alpa.parallelize(function, method=alpa.ShardParallel(devices=mesh_of(shape)), **more)


def as_words(tree):
    return jax.tree_util.tree_map(lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree)


def is_key(leaf):
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def assert_same(actual, expected, rtol=0.0):
    assert jax.tree_util.tree_structure(actual) == jax.tree_util.tree_structure(expected)
    jax.tree_util.tree_map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol), as_words(actual), as_words(expected)
    )


@pytest.mark.parametrize(
    ("shape", "partitionable"),
    [((2, 2), False), ((2, 2), True), *(pytest.param(shape, kind, marks=pytest.mark.slow)
                                        for shape in ((1, 2), (2, 1)) for kind in (False, True))],
    indirect=["partitionable"],
)  # fmt: skip
def test_every_sampler_draws_as_on_one_device(shape, partitionable):
    def draw(raw, typed, x):
        pairs = zip(*(jax.random.split(key, len(SAMPLERS)) for key in (raw, typed)), strict=True)
        keys = [pair[n % 2] for n, pair in enumerate(pairs)]
        return [sample(key, SHAPE) for sample, key in zip(SAMPLERS, keys, strict=True)], keys[-2:], 2 * x

    given = jax.random.PRNGKey(7), jax.random.key(8), np.ones(SHAPE, np.float32)
    assert_same(parallel(draw, shape, batch_argnums=(2,))(*given), jax.jit(draw)(*given))


def test_a_key_that_is_used_twice_draws_the_same_twice_and_seeds_have_no_say():
    draw = parallel(lambda key: (jax.random.normal(key, SHAPE), jax.random.normal(key, SHAPE)), batch_argnums=())
    key = jax.random.PRNGKey(0)
    _first, second = draw(key)
    alpa.set_seed(1)
    assert_same([second, *draw(key)], [jax.random.normal(key, SHAPE)] * 3)


@pytest.mark.parametrize(("partitionable", "drawn"), [(True, "8,8"), (False, "64")], indirect=["partitionable"])
def test_bits_whose_places_alone_say_what_they_are_are_drawn_where_they_are_needed(partitionable, drawn):
    draw = parallel(lambda key, x: x * jax.random.bernoulli(key, 0.5, x.shape), (1, 2))
    draw(jax.random.PRNGKey(0), np.ones(SHAPE, np.float32))
    text = draw.get_last_executable().compiled.hlo_modules()[0].to_string()
    assert drawn in set(re.findall(r"u32\[([\d,]+)\]\S* xor", text))


class Model(nn.Module):
    """A network with dropout after each layer, computed again in the backward pass."""

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.remat(nn.Dense)(16)(x)
            x = nn.remat(nn.Dropout)(0.5, deterministic=False)(jnp.tanh(x))
        return x


class State(TrainState):
    """Parameters, and the key of the next step."""

    key: jax.Array


@pytest.mark.parametrize(
    ("shape", "make_key"), [((1, 2), jax.random.key), ((2, 1), jax.random.PRNGKey), ((2, 2), jax.random.key)]
)
def test_training_with_dropout_equals_that_on_one_device(shape, make_key):
    def step(state, batch):
        key, dropout = jax.random.split(state.key)

        def loss(params):
            out = state.apply_fn(params, batch["x"], rngs={"dropout": dropout})
            return jnp.mean((out - batch["y"]) ** 2), out

        (value, out), grads = alpa.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads).replace(key=key), (value, out == 0)

    def train(function):
        model, x = Model(), jnp.ones((1, 16))
        params = model.init({"params": jax.random.PRNGKey(0), "dropout": jax.random.PRNGKey(0)}, x)
        state = State.create(apply_fn=model.apply, params=params, tx=optax.sgd(0.1), dynamic_scale=None,
                             key=make_key(5))  # fmt: skip
        losses, masks = [], []
        for _ in range(2):
            state, (loss, mask) = function(state, batch)
            losses.append(loss)
            masks.append(mask)
        return (state.params, losses), (state.key, masks)

    draw = np.random.default_rng(0)
    batch = {name: draw.normal(size=(8, 16)).astype(np.float32) for name in "xy"}
    actual, drawn = train(parallel(step, shape))
    expected, expected_drawn = train(jax.jit(step))
    assert_same(drawn, expected_drawn)
    assert_same(actual, expected, rtol=1e-5)


def test_arguments_that_hold_typed_keys_are_placed_and_created():
    def step(state, batch):
        noise = jax.random.normal(state["key"], state["w"].shape)
        grads = alpa.grad(lambda w: jnp.mean((batch["x"] @ w) ** 2))(state["w"])
        return {"w": state["w"] - grads + noise, "key": jax.random.split(state["key"])[0]}

    def create():
        return {"w": jnp.ones((8, 8)), "key": jax.random.key(3)}

    batch = {"x": np.ones((8, 8), np.float32)}
    train = parallel(step, donate_argnums=(0,))
    state = alpa.parallelize(create, method=alpa.CreateStateParallel(train, batch))()
    assert state["key"].dtype == jax.random.key(3).dtype
    placement = train.get_last_executable().get_input_placement_specs()[0]["key"]
    assert (placement.aval.shape, placement.aval.dtype) == ((), state["key"].dtype)
    assert_same(train(state, batch), jax.jit(step)(create(), batch), rtol=1e-6)


def test_other_generators_draw_as_on_one_device():
    def draw(key):
        first, second = jax.random.split(key)
        return jax.random.normal(first, SHAPE), jax.random.bernoulli(second, 0.5, SHAPE), second

    key = jax.random.key(3, impl="rbg")
    assert_same(parallel(draw, batch_argnums=())(key), jax.jit(draw)(key))


def test_one_typed_key_in_a_batch_is_not_cut():
    def step(params, batch):
        grads = alpa.grad(lambda p: jnp.sum(p * batch["x"] * jax.random.normal(batch["key"], (4,))))(params)
        return params - grads

    method = alpa.ShardParallel(devices=mesh_of((1, 2)), num_micro_batches=2)
    batch = {"x": np.ones((8, 4), np.float32), "key": jax.random.key(0)}
    found = alpa.parallelize(step, method=method)(jnp.zeros(4), batch)
    assert np.isfinite(np.asarray(found)).all()
