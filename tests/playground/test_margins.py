"""Margins and weights of unbalanced labels, against formulas written out, and a loss that changes after some steps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_dejavu.playground import Job, Problem, Until, problem, simulate
from alpa_dejavu.playground.job import Later
from alpa_dejavu.playground.problems import (
    accuracy_of_labels,
    balanced_weights,
    label_margins,
    long_tail,
    margin_loss,
)
from alpa_dejavu.testing import example_cluster


def test_margins_and_weights_are_those_of_the_papers():
    counts = [500, 40, 3]
    margins = label_margins(counts)
    assert margins[2] == pytest.approx(0.5)
    for j in range(3):
        assert margins[j] == pytest.approx(0.5 * (3 / counts[j]) ** 0.25)
    weights = balanced_weights(counts)
    exact = [(1 - 0.9999) / (1 - 0.9999**n) for n in counts]
    np.testing.assert_allclose(weights, np.array(exact) / np.mean(exact))
    # At beta 0 all are equal, near 1 they are inverse counts.
    assert balanced_weights(counts, 0.0).tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_allclose(balanced_weights(counts, 1 - 1e-9) * counts, 3 / np.sum(1 / np.array(counts)), rtol=1e-4)


def test_the_loss_is_cross_entropy_of_scaled_cosines_with_the_right_one_smaller():
    counts, draw = [90, 20, 4], np.random.default_rng(0)
    cosines, targets = draw.uniform(-1, 1, (6, 3)), np.array([0, 1, 2, 2, 0, 1])
    margins, weights = 0.5 * (4 / np.array(counts)) ** 0.25, np.array([0.2, 0.8, 2.0])
    each = []
    for row, target in zip(cosines, targets, strict=True):
        shifted = np.array(row)
        shifted[target] -= margins[target]
        each.append(np.log(np.exp(30 * shifted).sum()) - 30 * shifted[target])
    batch = jnp.asarray(cosines, jnp.float32), jnp.asarray(targets)
    plain = margin_loss(lambda params, inputs: inputs, counts)
    weighted = margin_loss(lambda params, inputs: inputs, counts, weights=weights.tolist())
    assert float(plain(None, batch)) == pytest.approx(np.mean(each), rel=1e-4)
    of_each = weights[targets]
    assert float(weighted(None, batch)) == pytest.approx(np.sum(of_each * each) / of_each.sum(), rel=1e-4)
    # Optax knows cross entropy: without margins, and a scale of 1, it is the same.
    none = margin_loss(lambda params, inputs: inputs, counts, most=1e-9, scale=1.0)
    expected = optax.softmax_cross_entropy_with_integer_labels(batch[0], batch[1]).mean()
    assert float(none(None, batch)) == pytest.approx(float(expected), rel=1e-5)


def test_a_long_tail_falls_by_its_ratio():
    targets = np.random.default_rng(0).permutation(np.repeat(np.arange(5), 160))
    kept = long_tail(targets, 16.0)
    assert np.bincount(targets[kept]).tolist() == [160, 80, 40, 20, 10]
    assert (np.diff(kept) > 0).all()
    assert len(long_tail(targets, 1.0)) == 800
    counts = np.bincount(problem("digits-long-tail").train[1])
    assert (np.diff(counts) < 0).all()
    assert counts[0] / counts[-1] == pytest.approx(20, rel=0.1)


def test_after_its_steps_gradients_are_of_the_later_loss():
    # The first loss pulls the parameter by 1 each step, the later one by 10.
    def pulls(much):
        return lambda params, batch: much * params[0] + 0.0 * jnp.mean(batch[0])

    data = np.zeros(4, np.float32), np.zeros(4, np.float32)
    trained = Problem("pulls", lambda key: jnp.zeros(1), pulls(1.0), None, data, data, later=Later(3, pulls(10.0)))
    job = Job(trained, 1.0, 1, optax.sgd(1.0))
    for side_by_side in (True, False):
        one = dataclasses.replace(job, side_by_side=side_by_side)
        for steps, expected in ((3, -3.0), (5, -23.0)):
            run = simulate(one, example_cluster(1, 2), "all-reduce", until=Until(steps=steps), looks=0)
            assert run.params.tolist() == [expected]
    # Workers whose clocks differ have each their own number of steps, though gradients are computed side by side.
    unlike = dataclasses.replace(job, compute_s=(1.0, 3.0))
    run = simulate(unlike, example_cluster(1, 2), "async-server", until=Until(steps=4), looks=0)
    assert run.params.tolist() == [-2 * (3 + 10)]


def test_accuracies_of_labels_are_those_by_counting_and_make_up_the_whole():
    trained = problem("digits-margins")
    run = simulate(Job(trained, 1.0), example_cluster(1, 2), "all-reduce", until=Until(steps=40), looks=0)
    found, targets = accuracy_of_labels(trained, run.params), trained.held_out[1]
    assert found.shape == (10,)
    assert np.average(found, weights=np.bincount(targets)) == pytest.approx(run.accuracy[-1], abs=1e-6)
    assert run.loss[-1] < run.loss[0]


def test_cosines_are_those_of_the_last_layer():
    trained = problem("digits-margins")
    params = trained.init(jax.random.PRNGKey(0))
    larger = jax.tree.map(lambda leaf: leaf, params)
    larger["out"]["kernel"] = 7 * params["out"]["kernel"]
    batch = trained.held_out
    assert float(trained.loss(params, batch)) == pytest.approx(float(trained.loss(larger, batch)), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: label_margins([3, 0]), r"counts is \[3, 0\], but must be at least 1 sample of each label"),
        (lambda: balanced_weights([3, 1], 1.0), r"beta is 1\.0, but must be at least 0 and below 1"),
        (lambda: long_tail(np.zeros(3, int), 0.5), r"ratio is 0\.5, but must be at least 1"),
        (lambda: Later(0, lambda params, batch: 0.0), "steps is 0, but must be a whole number"),
    ],
)
def test_what_can_not_be_is_said(make, said):
    with pytest.raises(ValueError, match=said):
        make()
