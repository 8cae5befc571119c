"""Where gradients are computed doesn't matter: in this process, over devices, on Ray's workers, by Alpa."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex.evaluators import OneByOne, RayWorkers, Sharded, Vmapped
from alpa_dejavu.training.optex.testing import check_evaluator
from optex_steps import assert_same, loss, network, trained

DRAW = np.random.default_rng(0)
PARAMS = network(DRAW)
BATCHES = DRAW.standard_normal((4, 4, 16, 5)).astype(np.float32)
SETTINGS = {"parallel": 4, "history": 8, "trust": np.inf}
ADAM = optex(optax.adam(1e-2), **SETTINGS)


@pytest.fixture(scope="module")
def expected():
    return trained(ADAM, OneByOne(loss), PARAMS, BATCHES)[0]


def test_evaluators_of_this_process_keep_the_contract_and_train_alike(expected):
    for evaluator in (OneByOne(loss), Vmapped(loss), Sharded(loss, jax.devices()[:2]), Vmapped(loss, replicas=4)):
        check_evaluator(evaluator, loss, PARAMS, BATCHES[0])
    assert_same(trained(ADAM, Sharded(loss, jax.devices()[:4]), PARAMS, BATCHES)[0], expected)
    with pytest.raises(ValueError, match="parallel is 4, but must divide by the 3 devices; give fewer devices"):
        trained(ADAM, Sharded(loss, jax.devices()[:3]), PARAMS, BATCHES)


def test_noise_is_the_variance_of_the_mean_gradient_and_fits_a_history_of_it():
    batches = np.random.default_rng(1).standard_normal((4, 4000, 5)).astype(np.float32)
    points = jax.tree.map(lambda p: jnp.stack([p] * 4), PARAMS)
    told = Vmapped(loss, replicas=100).evaluate(points, batches, 4).noise
    each = jax.vmap(jax.grad(loss), (None, 0))(PARAMS, batches[0][:, None])
    for name, gradients in each.items():
        whole = np.var(gradients, axis=0, ddof=1).sum() / 4000
        np.testing.assert_allclose(told[name], whole, rtol=0.25)
    side_by_side = optex(optax.sgd(0.1), noise="replicas", scale="median", **SETTINGS)
    state = trained(side_by_side, Vmapped(loss, replicas=2), PARAMS, BATCHES)[1]
    assert (np.asarray(state.noise) > 0).all()
    with pytest.raises(ValueError, match="batch is 16 samples, but must divide by the 3 replicas"):
        trained(side_by_side, Vmapped(loss, replicas=3), PARAMS, BATCHES)


@pytest.mark.ray
@pytest.mark.slow
def test_ray_workers_train_alike_and_one_that_dies_costs_its_point_alone(expected, tmp_path):
    from alpa_dejavu.alpa.local_cluster import local_cluster

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
            assert_same(trained(ADAM, workers, PARAMS, BATCHES)[0], expected)
        batches = BATCHES[0].copy()
        batches[2, 0, 0] = 100.0
        with RayWorkers(deadly, 4) as workers:
            params, state, _ = trained(ADAM, workers, PARAMS, BATCHES)
            params, state, report = ADAM.step(params, state, workers, batches)
            assert killed.exists()
            assert (int(report.walked), int(report.lost), int(report.dropped), workers.deaths) == (4, 1, 0, 1)
            assert int(state.history.count) == 1 + 3 * 4 + 3
            params, state, report = ADAM.step(params, state, workers, BATCHES[1])
            assert (int(report.lost), int(report.kept)) == (0, 4)
