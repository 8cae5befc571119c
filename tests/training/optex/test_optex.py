"""OptEx: the optimizer itself with one point, exact where gradients are affine, and clean after bad gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_dejavu.training.optex import optex
from alpa_dejavu.training.optex.evaluators import Evaluated, Evaluator, OneByOne, Vmapped
from optex_steps import loss, network, trained

DRAW = np.random.default_rng(0)
PARAMS = network(DRAW)
BATCHES = DRAW.standard_normal((6, 3, 16, 5)).astype(np.float32)


def same(one, other):
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all((np.asarray(a) == np.asarray(b)).all() for a, b in pairs)


@pytest.mark.parametrize(
    ("inside", "settings"),
    [
        (optax.sgd(0.1, momentum=0.9), {"parallel": 1}),
        (optax.adamw(optax.cosine_decay_schedule(1e-2, 50), weight_decay=0.1), {"parallel": 3, "trust": 0.0}),
        (optax.chain(optax.clip_by_global_norm(0.1), optax.rmsprop(1e-2)), {"parallel": 3, "trust": 0.0}),
        (optax.lion(1e-2), {"parallel": 3, "trust": 0.0, "applied": "last"}),
    ],
)
def test_one_point_is_the_optimizer_to_the_bit(inside, settings):
    found, state, reports = trained(optex(inside, history=6, **settings), OneByOne(loss), PARAMS, BATCHES)
    gradient = jax.jit(jax.grad(loss))

    @jax.jit
    def update(gradients, moments, params):
        updates, moments = inside.update(gradients, moments, params)
        return optax.apply_updates(params, updates), moments

    params, moments = PARAMS, inside.init(PARAMS)
    for batch in BATCHES:
        params, moments = update(gradient(params, batch[0]), moments, params)
    assert same((found, state.optimizer), (params, moments))
    assert [int(report.walked) for report in reports] == [1] * 6


def simplex(dimension, seed):
    """Affinely independent points: a simplex, turned and moved, with noise."""
    draw = np.random.default_rng(seed)
    turned = np.linalg.qr(draw.standard_normal((dimension, dimension)))[0]
    corners = np.vstack([np.zeros(dimension), turned]) * 2 + draw.standard_normal(dimension)
    return (corners + 0.1 * draw.standard_normal(corners.shape)).astype(np.float32)


@pytest.mark.parametrize("applied", ["all", "last"])
def test_on_a_quadratic_n_steps_are_those_of_n_sequential_ones(applied):
    inside = optax.sgd(0.1, momentum=0.5)
    side_by_side = optex(inside, parallel=11, history=11, kernel="dot-product", scale="median", noise=0.0, trust=np.inf,
                         applied=applied)  # fmt: skip
    ask, tell = jax.jit(side_by_side.ask), jax.jit(side_by_side.tell)
    quadratic = Vmapped(lambda p, given: (p - given[1]) @ given[0] @ (p - given[1]) / 2)
    for seed in range(5):
        draw = np.random.default_rng(seed)
        turned = np.linalg.qr(draw.standard_normal((10, 10)))[0]
        matrix = ((turned * np.linspace(0.2, 2, 10)) @ turned.T).astype(np.float32)
        middle = draw.standard_normal(10).astype(np.float32)
        given = np.stack([matrix] * 11), np.stack([middle] * 11)
        points = simplex(10, seed)
        params = draw.standard_normal(10).astype(np.float32)
        state = side_by_side.init(params)
        # The history gets eleven points that were evaluated elsewhere.
        walk = ask(params, state)._replace(points=jnp.asarray(points), count=jnp.int32(11))
        state = tell(params, state, walk, quadratic.evaluate(points, given, 11))[1]
        state = state._replace(optimizer=inside.init(params))
        expected, moments, way = params, inside.init(params), []
        for _ in range(11):
            way.append(expected)
            updates, moments = inside.update(matrix @ (expected - middle), moments, expected)
            expected = optax.apply_updates(expected, updates)
        walk = ask(params, state)
        apart = np.abs(walk.points - np.array(way)).max() / np.abs(way).max()
        # Gradients are estimated as exactly: their differences are those of the points of the walk.
        assert apart <= 1e-4
        for i in range(10):
            estimate = np.asarray(walk.weights[0, i]) @ np.asarray(state.history.gradients[0])
            right = matrix @ (np.asarray(walk.points[i]) - middle)
            assert np.abs(estimate - right).max() <= 1e-4 * max(np.abs(right).max(), np.abs(way[0]).max())
        found, after, report = tell(params, state, walk, quadratic.evaluate(walk.points, given, walk.count))
        np.testing.assert_allclose(found, expected, atol=1e-4)
        np.testing.assert_allclose(jax.tree.leaves(after.optimizer)[0],
                                   jax.tree.leaves(moments)[0], atol=1e-4)  # fmt: skip
        assert int(report.walked) == int(report.kept) == 11


@pytest.fixture(scope="module")
def walking():
    """Steps of gradient descent that always walk, after two of them."""
    side_by_side = optex(optax.sgd(0.1), parallel=3, history=6, trust=np.inf)
    return side_by_side, *trained(side_by_side, Vmapped(loss), PARAMS, BATCHES[:2])[:2]


class Spoilt(Evaluator):
    """Some points' gradients aren't finite, or don't arrive."""

    def __init__(self, value, where, has_arrived=None):
        self.value, self.where, self.has_arrived = value, where, has_arrived

    def evaluate(self, points, batches, count):
        found = Vmapped(loss).evaluate(points, batches, count)
        gradients = {**found.gradients, "a": found.gradients["a"].at[self.where, 1, 2].set(self.value)}
        return Evaluated(found.losses, gradients, None, self.has_arrived)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_gradients_that_are_not_finite_are_dropped_and_counted(value, walking):
    side_by_side, params, state = walking
    spoilt, after, report = side_by_side.step(params, state, Spoilt(value, 1), BATCHES[2])
    assert (int(report.walked), int(report.dropped), int(after.dropped), int(report.lost)) == (3, 1, 1, 0)
    assert int(after.history.count) == int(state.history.count) + 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((spoilt, after)))
    assert np.isfinite(report.errors[0])
    assert np.isnan(report.errors[1])
    # All of them: nothing changes but the counts, and training goes on.
    kept, after, report = side_by_side.step(spoilt, after, Spoilt(value, slice(None)), BATCHES[3])
    assert same(kept, spoilt)
    assert (int(report.kept), int(after.dropped)) == (0, 4)
    better, _, report = side_by_side.step(kept, after, Vmapped(loss), BATCHES[4])
    assert int(report.kept) == 3
    assert not same(better, kept)


def test_points_that_do_not_arrive_are_left_out(walking):
    side_by_side, params, state = walking
    missing = Spoilt(np.nan, 1, np.array([True, False, True]))
    found, after, report = side_by_side.step(params, state, missing, BATCHES[2])
    assert (int(report.lost), int(report.dropped), int(after.lost), int(report.kept)) == (1, 0, 1, 3)
    walk = jax.jit(side_by_side.ask)(params, state)
    right = Vmapped(loss).evaluate(walk.points, BATCHES[2], walk.count)
    for name in PARAMS:
        applied = right.gradients[name][0] + right.gradients[name][2]
        np.testing.assert_allclose(found[name], params[name] - 0.1 * applied, rtol=1e-5, atol=1e-7)


def test_a_history_that_does_not_fit_is_refused_with_its_bytes():
    side_by_side = optex(optax.sgd(0.1), parallel=2, history=10, memory_bytes=1000)
    values = 10 * 48 * 4 + 11 * 48 * 4 + (2 * 100 + 10) * 4 + 11 * 4
    assert side_by_side.history_bytes(PARAMS) == values
    state = optex(optax.sgd(0.1), parallel=2, history=10).init(PARAMS)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state.history)) == values
    with pytest.raises(ValueError, match=r"history is 10 points, which take 4.*, but must take at most 1000 bytes"):
        side_by_side.init(PARAMS)
    small = optex(optax.sgd(0.1), parallel=2, history=10, share=0.1, dtype="bfloat16")
    state = small.init(PARAMS)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state.history)) == small.history_bytes(PARAMS) < 2200
    assert optex(optax.sgd(0.1), parallel=1).history_bytes(PARAMS) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"parallel": 4, "history": 3}, "history is 3, but must be at least parallel, 4; keep more points"),
        ({"kernel": "matern"}, "there is no kernel named 'matern'; choose one of .*; did you mean"),
        ({"scale": "likelyhood"}, "there is no scale named 'likelyhood'; choose one of .*; did you mean 'likelihood'"),
        ({"scale": -1.0}, "value is -1.0, but must be a finite number above 0"),
        ({"trust": -0.1}, "trust is -0.1, but must be at least 0"),
        ({"share": 0.0}, "share is 0.0, but must be above 0 and at most 1"),
        ({"scale": "median", "noise": "fitted"}, 'noise is "fitted", but must be a number or "replicas"'),
        ({"applied": "best"}, "applied is 'best', but must be one of 'all', 'last'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        optex(optax.sgd(0.1), **settings)


def test_parameters_and_batches_that_do_not_fit_are_refused():
    side_by_side = optex(optax.sgd(0.1), parallel=3)
    with pytest.raises(ValueError, match="params has a leaf of int32, but must have real numbers alone"):
        side_by_side.init({"n": jnp.arange(3)})
    with pytest.raises(ValueError, match="params is without arrays, but must have some"):
        side_by_side.init({})
    with pytest.raises(ValueError, match=r"batches has a leaf of shape \(2, 16, 5\), but must have 3 first"):
        side_by_side.step(PARAMS, side_by_side.init(PARAMS), Vmapped(loss), BATCHES[0, :2])
    by_replicas = optex(optax.sgd(0.1), parallel=3, noise="replicas")
    with pytest.raises(ValueError, match='noise is "replicas", but the evaluator tells none; give it replicas=2'):
        by_replicas.step(PARAMS, by_replicas.init(PARAMS), Vmapped(loss), BATCHES[0])
