"""Estimates: kernels and posteriors as scikit-learn has them, histories as NumPy does, layers as problems apart."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sklearn_kernels

from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex._posterior import Seen, fitted, log_likelihood, weights_at
from alpa_dejavu.training.optex.evaluators import OneByOne
from alpa_dejavu.training.optex.kernels import KERNELS, RBF, kernel
from alpa_dejavu.training.optex.scales import Fixed, Likelihood, MedianDistance
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


def test_length_scales_are_those_that_were_asked_for():
    points = np.linspace(0, 6, 12)[:, None] * np.ones(2)
    smooth, rough = np.sin(points[:, :1] / 3 + np.arange(30)), DRAW.standard_normal((12, 30))
    noises = jnp.array([1e-4, 1.0])
    middle = np.median(np.sqrt(squared(points, points))[np.triu_indices(12, 1)])
    seen = seen_of(points, smooth, np.zeros(2))
    assert float(Fixed(0.3).choose(RBF(), seen, noises)[0]) == np.float32(0.3)
    np.testing.assert_allclose(MedianDistance(2.0).choose(RBF(), seen, noises)[0], 2 * middle, rtol=1e-5)
    scale, noise = Likelihood().choose(RBF(), seen, noises)
    assert float(noise) == np.float32(1e-4)
    assert middle / 2 <= float(scale) <= 4 * middle
    # What is noise alone is told from a signal.
    assert float(Likelihood().choose(RBF(), seen_of(points, rough, np.zeros(2)), noises)[1]) == 1.0


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


def test_bfloat16_refits_and_reused_arrays_train_nearly_alike(usual):
    expected = usual[1][0]
    side_by_side = optex(optax.sgd(0.3), 3, 7, trust=np.inf, dtype="bfloat16", refit=4, in_place=True)
    found, state, _ = trained(side_by_side, OneByOne(loss), PARAMS, BATCHES)
    assert {leaf.dtype for leaf in state.history.gradients} == {jnp.dtype("bfloat16")}
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02)


def test_how_far_a_walk_goes_is_up_to_the_kernel():
    def rough(params, batch):
        # Gradients of points that are near have nothing to do with each other.
        return jnp.sum(jnp.sin(1e4 * params)) / 1e4 + 0 * jnp.sum(batch)

    def smooth(params, batch):
        return jnp.sum(jnp.cosh(params)) + 0 * jnp.sum(batch)

    walked, side_by_side = {}, optex(optax.sgd(0.01), 3, 9, trust=0.7)
    for name, own in (("rough", rough), ("smooth", smooth)):
        reports = trained(side_by_side, OneByOne(own), np.linspace(0.1, 1, 40, dtype=np.float32), BATCHES)[2]
        walked[name] = [int(report.walked) for report in reports[2:]]
    assert walked["smooth"] == [3] * 7
    assert walked["rough"] == [1] * 7
