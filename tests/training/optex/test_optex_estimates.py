"""Estimates: kernels and posteriors as scikit-learn has them, histories as NumPy does, layers as problems apart."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels

from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex._posterior import Seen, fitted, log_likelihood, weights_at
from alpa_dejavu.training.optex.evaluators import OneByOne
from alpa_dejavu.training.optex.kernels import KERNELS, kernel
from alpa_dejavu.training.optex.testing import check_kernel
from optex_steps import trained

DRAW = np.random.default_rng(0)
SCALE, NOISE = 1.7, 0.05
TWINS = {
    "rbf": sklearn_kernels.RBF(SCALE),
    "matern12": sklearn_kernels.Matern(SCALE, nu=0.5),
    "matern32": sklearn_kernels.Matern(SCALE, nu=1.5),
    "matern52": sklearn_kernels.Matern(SCALE, nu=2.5),
    # Its points come divided by the length scale.
    "dot-product": sklearn_kernels.DotProduct(1.0),
}


def squared(left, right):
    return ((left[:, None] - right) ** 2).sum(axis=-1).astype(np.float32)


def seen_of(points, gradients, reference, empty=2):
    """The history of points, with some empty slots."""
    size = len(points) + empty
    known = np.arange(size) < len(points)

    def padded(matrix):
        whole = np.zeros((size,) * matrix.ndim, np.float32)
        whole[tuple(slice(len(points)) for _ in matrix.shape)] = matrix
        return jnp.asarray(whole)

    return Seen(padded(squared(points, points)), padded(gradients @ gradients.T),
                padded(squared(points, reference[None])[:, 0]), jnp.asarray(known))  # fmt: skip


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_posterior_is_the_one_of_scikit_learn(name):
    check_kernel(kernel(name))
    points, gradients = DRAW.standard_normal((9, 3)), DRAW.standard_normal((9, 40))
    reference, new = np.zeros(3), DRAW.standard_normal(3)
    seen = seen_of(points, gradients, reference)
    over = SCALE if name == "dot-product" else 1.0
    twin = TWINS[name]
    mean = np.trace(twin(points / over)) / 9
    process = fitted(kernel(name), seen, SCALE, NOISE)
    reach = np.append(squared(points, new[None])[:, 0], [0, 0]).astype(np.float32)
    weights, variance = weights_at(kernel(name), seen, process, reach, np.float32((new**2).sum()))
    known = GaussianProcessRegressor(twin, alpha=NOISE * mean, optimizer=None).fit(points / over, gradients)
    estimate, deviation = known.predict(new[None] / over, return_std=True)
    np.testing.assert_allclose(np.asarray(weights)[:9] @ gradients, estimate[0], atol=2e-4 * np.abs(gradients).max())
    assert (np.asarray(weights)[9:] == 0).all()
    np.testing.assert_allclose(variance / process.amplitude, np.ravel(deviation)[0] ** 2, rtol=5e-3, atol=1e-5)
    # The likeliest amplitude, and the likelihood for it: over all coordinates, up to a constant.
    matrix = twin(points / over) + NOISE * mean * np.eye(9)
    amplitude = np.trace(np.linalg.solve(matrix, gradients @ gradients.T)) / 9
    np.testing.assert_allclose(process.amplitude, amplitude, rtol=1e-3)
    expected = -9 / 2 * np.log(amplitude) - np.linalg.slogdet(matrix)[1] / 2
    np.testing.assert_allclose(log_likelihood(process, seen), expected, rtol=1e-3, atol=1e-3)


PARAMS = {"one": {"w": DRAW.standard_normal(6).astype(np.float32)}, "two": {"w": np.ones((2, 3), np.float32)}}


def loss(params, batch):
    one, two = params["one"]["w"], params["two"]["w"]
    return jnp.mean(jnp.cosh(one - batch)) + jnp.mean((two - 3) ** 4) / 20


BATCHES = 0.1 * DRAW.standard_normal((9, 3, 6)).astype(np.float32)


@pytest.fixture(scope="module")
def usual():
    side_by_side = optex(optax.sgd(0.3), 3, 7, trust=np.inf)
    return side_by_side, trained(side_by_side, OneByOne(loss), PARAMS, BATCHES)


@pytest.mark.parametrize("settings", [{}, {"share": 0.4}])
def test_the_history_has_the_last_points_and_knows_how_far_they_are_apart(settings, usual):
    side_by_side, found = usual
    if settings:
        side_by_side = optex(optax.sgd(0.3), 3, 7, trust=np.inf, **settings)
        found = trained(side_by_side, OneByOne(loss), PARAMS, BATCHES)
    _, state, reports = found
    history, layout = state.history, side_by_side._layout(PARAMS)
    assert sorted(np.asarray(history.age)) == list(range(int(history.count) - 7, int(history.count)))
    offsets = [np.asarray(o).reshape(7, -1) for o in history.offsets]
    distances = sum(w * squared(o, o) for w, o in zip(layout.weights, offsets, strict=True))
    np.testing.assert_allclose(history.distances[0], distances, rtol=1e-3, atol=1e-5)
    picked = [np.asarray(g) for g in layout.picked(history.gradients, rows=True)]
    products = sum(w * g.reshape(7, -1) @ g.reshape(7, -1).T for w, g in zip(layout.weights, picked, strict=True))
    np.testing.assert_allclose(history.products[0], products, rtol=1e-3, atol=1e-5)
    assert float(reports[-1].cosines[0]) > 0.5
    if settings:
        assert sum(o.shape[1] for o in offsets) < 8


def test_stages_are_estimated_as_problems_apart():
    settings = {"parallel": 3, "history": 7, "trust": np.inf}
    together = trained(optex(optax.sgd(0.3), scope="stage", **settings), OneByOne(loss), PARAMS, BATCHES)
    first = OneByOne(lambda p, b: jnp.mean(jnp.cosh(p["one"]["w"] - b)))
    alone = trained(optex(optax.sgd(0.3), **settings), first, {"one": PARAMS["one"]}, BATCHES)
    assert together[1].scale.shape == (2,)
    np.testing.assert_allclose(together[0]["one"]["w"], alone[0]["one"]["w"], rtol=1e-4)
    apart = [state.history.distances[0] for state in (together[1], alone[1])]
    np.testing.assert_allclose(*apart, rtol=1e-3, atol=1e-6)
