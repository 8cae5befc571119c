"""PipeDream: the age of what stages compute at, a serial re-implementation, and remedies."""

from __future__ import annotations

import jax
import numpy as np
import optax
import pytest

from alpa_dejavu.playground import Job, problem
from alpa_dejavu.playground._learner import batches
from alpa_dejavu.playground.exchanges import AllReduce, HetPipeWaves, PipeDream
from alpa_dejavu.playground.testing import check_exchange
from seen_training import Messages, counting_job, simulated

REMEDIES = ["stash", "2bw", "predict", "rate"]


@pytest.fixture(scope="module")
def digits():
    return problem("digits-mlp")


def serial(digits, stages, remedy, optimizer, steps, smoothing):
    """Delayed gradient descent of one pipeline, leaf by leaf, with all versions of all leaves kept."""
    params = jax.tree.leaves(digits.init(jax.random.PRNGKey(5)))
    structure = jax.tree.structure(digits.init(jax.random.PRNGKey(5)))
    rows, gradient = batches(Job(digits, 0.1), 5, 0), jax.jit(jax.grad(digits.loss))
    state = optimizer.init(jax.tree.unflatten(structure, params))

    @jax.jit
    def updated(params, state, values):
        changes, state = optimizer.update(values, state, params)
        return optax.apply_updates(params, changes), state

    stage = [n * stages // len(params) + 1 for n in range(len(params))]
    late = [1 if remedy == "2bw" else stages - n for n in stage]
    versions, averages = [params], [[np.zeros_like(leaf) for leaf in params]]
    while steps:
        found = []
        for _ in range(min(stages if remedy == "2bw" else 1, steps)):
            now = len(versions) - 1
            at = [versions[max(now - d, 0)][n] for n, d in enumerate(late)]
            if remedy == "predict":
                at = [one + np.float32(d) * averages[max(now - d, 0)][n]
                      for n, (one, d) in enumerate(zip(at, late, strict=True))]  # fmt: skip
            chosen, steps = next(rows), steps - 1
            batch = digits.train[0][chosen], digits.train[1][chosen]
            found.append(gradient(jax.tree.unflatten(structure, at), batch))
        values = jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]) / np.float32(len(leaves)), *found)
        before = versions[-1]
        after, state = updated(jax.tree.unflatten(structure, before), state, values)
        changes = [new - old for new, old in zip(jax.tree.leaves(after), before, strict=True)]
        if remedy == "rate":
            changes = [one / np.float32(max(d, 1)) for one, d in zip(changes, late, strict=True)]
            versions.append([old + one for old, one in zip(before, changes, strict=True)])
        else:
            versions.append(jax.tree.leaves(after))
        averages.append([np.float32(smoothing) * old + np.float32(1 - smoothing) * one
                         for old, one in zip(averages[-1], changes, strict=True)])  # fmt: skip
    return np.concatenate([np.ravel(leaf) for leaf in versions[-1]])


@pytest.mark.parametrize(("stages", "remedy"), [(2, "stash"), *((4, remedy) for remedy in REMEDIES)])
def test_it_is_delayed_gradient_descent_of_each_stage(digits, stages, remedy):
    optimizer = optax.sgd(0.05, momentum=0.5)
    job = Job(digits, 0.1, optimizer=optimizer, side_by_side=False)
    history = simulated(job, (1, 1), PipeDream(stages, remedy, 0.5), steps=14, seed=5, looks=0)
    expected = serial(digits, stages, remedy, optimizer, 14, 0.5)
    if remedy == "stash":
        assert history.params.tobytes() == expected.tobytes()
    np.testing.assert_allclose(history.params, expected, atol=2e-6)


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_stage_i_of_s_is_s_less_i_updates_late(stages):
    # All parameters count updates; one gradient a worker, and as many workers as parameters.
    seen = Messages()
    job = counting_job((0.1,) * 10)
    history = simulated(job, (1, 10), PipeDream(stages), steps=12, faults=[seen], looks=0)
    expected = np.repeat(np.arange(stages)[::-1], [len(part) for part in np.array_split(np.arange(10), stages)])
    for gradient in seen.gradients:
        lacks = gradient.step - np.rint(10 * gradient.at).astype(int)
        np.testing.assert_array_equal(lacks, np.minimum(expected, gradient.step))
    assert len(history.staleness) == stages


@pytest.mark.parametrize("remedy", REMEDIES)
def test_remedies_keep_the_contract(remedy):
    check_exchange(PipeDream(3, remedy), most_staleness=1 if remedy == "2bw" else 2)


def test_one_stage_is_synchronous_training(digits):
    job = Job(digits, 0.1, spread=0.3, optimizer=optax.sgd(0.05, momentum=0.5))
    expected = simulated(job, (1, 4), AllReduce(), steps=6, looks=0)
    for remedy in ("stash", "predict", "rate"):
        found = simulated(job, (1, 4), PipeDream(1, remedy), steps=6, looks=0)
        assert found.same(expected)


def test_settings_that_can_t_be_are_said():
    with pytest.raises(ValueError, match="remedy is 'none', but must be one of 'stash'"):
        PipeDream(remedy="none")
    with pytest.raises(ValueError, match=r"smoothing is 1\.5, but must be at least 0"):
        PipeDream(smoothing=1.5)


@pytest.mark.parametrize("concurrent", [1, 2, 5])
@pytest.mark.parametrize("distance", [0, 2])
def test_staleness_is_the_papers_and_no_less(concurrent, distance):
    # One worker is ten times as slow, so that the others are as far ahead as they may be.
    most_local, most_global = 0, 0
    for spread in (0.0, 0.7):
        seen = Messages()
        job = counting_job((10.0, 1.0, 1.0, 1.0), spread=spread)
        simulated(job, (1, 4), HetPipeWaves(concurrent, distance), steps=6 * concurrent, faults=[seen], looks=0)
        for gradient in seen.gradients:
            lacks = gradient.step - np.rint(4 * gradient.at).astype(int)
            most_local = max(most_local, lacks[gradient.worker])
            most_global = max(most_global, lacks.max())
    local = concurrent - 1
    assert most_local == local
    assert most_global == (distance + 1) * (local + 1) + local - 1


@pytest.mark.parametrize("way", [HetPipeWaves(1), HetPipeWaves(5, 2)])
def test_other_settings_keep_the_contract(way):
    check_exchange(way, most_staleness=way.concurrent - 1)
