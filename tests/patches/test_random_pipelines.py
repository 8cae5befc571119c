"""In a pipeline, dropout draws as on one device, in stages and where a backward pass computes again."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa.layer_option import DejavuLayerOption
from alpa_dejavu.alpa.local_cluster import local_cluster

pytestmark = pytest.mark.ray
LAYERS = range(4)


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    with local_cluster(devices=2):
        yield


@pytest.fixture(autouse=True)
def _use_cluster():
    alpa.init("ray")
    yield
    alpa.shutdown()


def data():
    draw = np.random.default_rng(0)
    params = {f"w{n}": (draw.normal(size=(32, 32)) / 6).astype(np.float32) for n in LAYERS}
    return params, {name: draw.normal(size=(16, 32)).astype(np.float32) for name in "xy"}


def dropped(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


def parallel(step, remat, micro_batches=1, **more):
    stages = DejavuStageOption(
        submesh_physical_shape_space="manual", manually_specified_submeshes=[(1, 1), (1, 1)], profile="never"
    )
    method = alpa.PipeshardParallel(
        num_micro_batches=micro_batches,
        layer_option=DejavuLayerOption(len(LAYERS), LAYERS if remat else ()),
        stage_option=stages,
    )
    return alpa.parallelize(step, method=method, **more)


@pytest.mark.parametrize("remat", [pytest.param(False, marks=pytest.mark.slow), True])
def test_each_micro_batch_folds_its_number_into_the_key(remat):
    def loss(params, batch, key):
        x = batch["x"]
        for n, layer in enumerate(jax.random.split(key, len(LAYERS))):
            x = dropped(layer, jnp.tanh(x @ params[f"w{n}"]))
        return jnp.mean((x - batch["y"]) ** 2)

    def step(params, batch, key):
        value, grads = alpa.value_and_grad(loss)(params, batch, key)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads), value

    (params, batch), key = data(), jax.random.key(5)
    made = parallel(step, remat, micro_batches=2, donate_argnums=(), batch_argnums=(1,))(params, batch, key)
    halves = [{name: array[8 * n : 8 * n + 8] for name, array in batch.items()} for n in range(2)]
    each = [jax.value_and_grad(loss)(params, half, jax.random.fold_in(key, n)) for n, half in enumerate(halves)]
    np.testing.assert_allclose(np.asarray(made[1]), (each[0][0] + each[1][0]) / 2, rtol=1e-5)
    for name in params:
        expected = params[name] - 0.05 * (each[0][1][name] + each[1][1][name])
        np.testing.assert_allclose(np.asarray(made[0][name]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("make_key", "remat"), [
    (jax.random.key, True), pytest.param(jax.random.key, False, marks=pytest.mark.slow),
    pytest.param(jax.random.PRNGKey, True, marks=pytest.mark.slow),
])  # fmt: skip
def test_a_state_with_its_key_trains_as_on_one_device_and_is_restored(make_key, remat, tmp_path):
    def step(state, batch):
        def loss(params, key):
            x = batch["x"]
            for n, layer in enumerate(jax.random.split(key, len(LAYERS))):
                x = jax.checkpoint(lambda w, x, k: dropped(k, jnp.tanh(x @ w)))(params[f"w{n}"], x, layer)
            return jnp.mean((x - batch["y"]) ** 2)

        value, grads = alpa.value_and_grad(loss)(state["params"], state["key"])
        params = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, state["params"], grads)
        return {"params": params, "key": jax.random.fold_in(state["key"], 1)}, value

    def words(key):
        return np.asarray(jax.random.key_data(key) if make_key is jax.random.key else key)

    params, batch = data()
    expected = state = {"params": params, "key": make_key(5)}
    train = parallel(step, remat, donate_argnums=(0,))
    for _ in range(2):
        expected, expected_loss = jax.jit(step)(expected, batch)
        state, loss = train(state, batch)
        np.testing.assert_allclose(np.asarray(loss), expected_loss, rtol=1e-5)
    alpa.save_checkpoint(str(tmp_path), state, 2)
    specs = train.get_last_executable().get_input_placement_specs()[0]
    state = alpa.restore_checkpoint(str(tmp_path), 2, specs)
    assert state["key"].dtype == expected["key"].dtype
    np.testing.assert_array_equal(words(state["key"]), words(expected["key"]))
    expected, expected_loss = jax.jit(step)(expected, batch)
    state, loss = train(state, batch)
    np.testing.assert_allclose(np.asarray(loss), expected_loss, rtol=1e-5)
    for name in params:
        np.testing.assert_allclose(np.asarray(state["params"][name]), expected["params"][name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("remat", [pytest.param(False, marks=pytest.mark.slow), True])
def test_gradients_are_those_of_the_masks_that_were_drawn(remat):
    # The network is linear in each of its weights, so that <gradient, weight> is the loss, whatever the masks.
    def step(params, batch):
        def loss(params):
            x = batch["x"]
            for n in LAYERS:
                x = dropped(jax.random.fold_in(jax.random.PRNGKey(3), n), x @ params[f"w{n}"])
            return jnp.mean(x * batch["y"])

        value, grads = alpa.value_and_grad(loss)(params)
        return params, [value, *(jnp.vdot(grads[name], params[name]) for name in sorted(params))]

    products = [float(np.asarray(product)) for product in parallel(step, remat, donate_argnums=())(*data())[1]]
    np.testing.assert_allclose(products, products[0], rtol=1e-5)
    np.testing.assert_allclose(products[0], jax.jit(step)(*data())[1][0], rtol=1e-5)
