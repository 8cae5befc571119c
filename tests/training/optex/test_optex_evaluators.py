"""Where gradients are computed doesn't matter: in this process, over devices, on Ray's workers, by Alpa."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex.evaluators import OneByOne, RayWorkers, Sharded, Vmapped
from alpa_dejavu.training.optex.testing import check_evaluator

DRAW = np.random.default_rng(0)
PARAMS = {"a": DRAW.standard_normal((4, 8)).astype(np.float32), "b": np.zeros(8, np.float32)}
BATCHES = DRAW.standard_normal((5, 4, 16, 4)).astype(np.float32)
SETTINGS = {"parallel": 4, "history": 8, "trust": np.inf}


def loss(params, batch):
    return jnp.mean((jnp.tanh(batch @ params["a"] + params["b"]) - batch[:, :1]) ** 2)


def trained(evaluator, side_by_side=None, params=PARAMS, steps=4):
    side_by_side = side_by_side or optex(optax.adam(1e-2), **SETTINGS)
    state, reports = side_by_side.init(params), []
    for step in range(steps):
        params, state, report = side_by_side.step(params, state, evaluator, BATCHES[step])
        reports.append(report)
    return params, state, reports


def assert_same(one, other):
    for a, b in zip(jax.tree_util.tree_leaves(one), jax.tree_util.tree_leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def expected():
    return trained(OneByOne(loss))[0]


def test_evaluators_of_this_process_keep_the_contract_and_train_alike(expected):
    for evaluator in (OneByOne(loss), Vmapped(loss), Sharded(loss, jax.devices()[:2]), Vmapped(loss, replicas=4)):
        check_evaluator(evaluator, loss, PARAMS, BATCHES[0])
    assert_same(trained(Sharded(loss, jax.devices()[:4]))[0], expected)
    with pytest.raises(ValueError, match="parallel is 4, but must divide by the 3 devices; give fewer devices"):
        trained(Sharded(loss, jax.devices()[:3]), steps=1)


def test_noise_is_the_variance_of_the_mean_gradient_and_fits_a_history_of_it():
    batches = np.random.default_rng(1).standard_normal((4, 4000, 4)).astype(np.float32)
    points = jax.tree_util.tree_map(lambda p: jnp.stack([p] * 4), PARAMS)
    told = Vmapped(loss, replicas=100).evaluate(points, batches, 4).noise
    each = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, batches[0][:, None])
    for name, gradients in each.items():
        whole = np.var(gradients, axis=0, ddof=1).sum() / 4000
        np.testing.assert_allclose(told[name], whole, rtol=0.25)
    side_by_side = optex(optax.sgd(0.1), noise="replicas", scale="median", **SETTINGS)
    state = trained(Vmapped(loss, replicas=2), side_by_side)[1]
    assert (np.asarray(state.noise) > 0).all()
    with pytest.raises(ValueError, match="batch is 16 samples, but must divide by the 3 replicas"):
        trained(Vmapped(loss, replicas=3), side_by_side, steps=1)


def test_the_history_is_sharded_as_the_parameters_are(expected):
    mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
    specs = {"a": PartitionSpec(None, "model"), "b": PartitionSpec("model")}
    params = {name: jax.device_put(p, NamedSharding(mesh, specs[name])) for name, p in PARAMS.items()}
    side_by_side = optex(optax.adam(1e-2), **SETTINGS)
    assert side_by_side.history_bytes(params) < 0.7 * side_by_side.history_bytes(PARAMS)
    found, state, _ = trained(OneByOne(loss), side_by_side, params)
    assert_same(found, expected)
    for kept in (state.history.gradients, state.history.offsets):
        assert [leaf.sharding.shard_shape(leaf.shape) for leaf in kept] == [(8, 4, 4), (8, 4)]
    assert found["a"].sharding.shard_shape((4, 8)) == (4, 4)


def test_ray_workers_need_a_cluster():
    with pytest.raises(RuntimeError, match=r"isn't connected to Ray; call ray\.init\(\) first"):
        RayWorkers(loss, 2)
    with pytest.raises(ValueError, match="workers is 0, but must be a whole number of at least 1"):
        RayWorkers(loss, 0)


@pytest.mark.ray
@pytest.mark.slow
def test_ray_workers_train_alike_and_one_that_dies_costs_its_point_alone(expected, tmp_path):
    driver, killed = os.getpid(), tmp_path / "killed"

    def deadly(params, batch):
        def die(value):
            if value > 50 and os.getpid() != driver:
                killed.touch()
                os._exit(1)

        jax.debug.callback(die, jnp.max(batch))
        return loss(params, batch)

    with local_cluster(devices=2):
        with RayWorkers(loss, 2) as workers:
            check_evaluator(workers, loss, PARAMS, BATCHES[0])
            assert_same(trained(workers)[0], expected)
        side_by_side = optex(optax.adam(1e-2), **SETTINGS)
        batches = BATCHES[0].copy()
        batches[2, 0, 0] = 100.0
        with RayWorkers(deadly, 4) as workers:
            params, state, _ = trained(workers, side_by_side)
            params, state, report = side_by_side.step(params, state, workers, batches)
            assert killed.exists()
            assert (int(report.walked), int(report.lost), int(report.dropped), workers.deaths) == (4, 1, 0, 1)
            assert int(state.history.count) == 1 + 3 * 4 + 3
            params, state, report = side_by_side.step(params, state, workers, BATCHES[1])
            assert (int(report.lost), int(report.kept)) == (0, 4)
