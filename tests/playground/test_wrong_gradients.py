"""Workers that send wrong gradients, and servers with rules against them."""

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import SynchronousServer
from alpa_dejavu.playground.fault import WrongGradient, WrongStage
from alpa_dejavu.testing import example_cluster

WORKERS = 7


def trained(server, faults, seed=0):
    job = Job(problem("digits-mlp"), 1.0, batch=32)
    return simulate(job, example_cluster(1, WORKERS), server, until=Until(steps=60), faults=faults, seed=seed)


@pytest.mark.parametrize("attack", ["sign-flip", "not-finite"])
def test_a_rule_at_the_server_survives_what_the_mean_does_not(attack):
    faults = [WrongGradient(worker, attack) for worker in (1, 4)]
    calm = trained("server", []).loss[-1]
    # Two of seven signs that flip leave three sevenths of the mean's step.
    spoilt = trained("server", faults).loss[-1]
    survived = trained(SynchronousServer(rule="suspicion", wrong=2), faults).loss[-1]
    assert not spoilt < 1.2 * calm
    assert not spoilt < survived + 0.5 * (spoilt - calm)
    assert survived < 1.2 * calm


def test_a_rule_of_one_weight_each_is_the_mean():
    plain, ruled = (trained(server, []) for server in (SynchronousServer(), SynchronousServer(rule="trimmed-mean")))
    np.testing.assert_allclose(ruled.loss, plain.loss, rtol=1e-4)


def test_gradients_are_wrong_for_a_while_only():
    calm, late = (trained("server", faults).loss for faults in ([], [WrongGradient(1, "not-finite", 1e6)]))
    np.testing.assert_array_equal(calm, late)
    begun = trained("server", [WrongGradient(1, "zero", 0.0, 30.5)]).loss
    assert calm[-1] < begun[-1] < 1.5 * calm[-1]


def test_what_a_monitor_finds_is_computed_again_by_the_next_worker_and_right():
    calm, found = (trained("server", faults) for faults in ([], [WrongStage(1, 0, share=0.25)]))
    np.testing.assert_array_equal(found.params, calm.params)
    # A quarter of the micro-batches: the wrong worker waits for the next one's seconds, who then is late by as many.
    later_s, wait_s = found.end_s - calm.end_s, 60 * 0.25
    assert 0.99 * wait_s <= later_s <= 2 * wait_s
    assert found.busy_s[[1, 2]].tolist() == [60.0, pytest.approx(60.0 + 59 * 0.25, abs=0.3)]
    assert "worker 2 computed again" in found.notes[0]
    unseen = trained("server", [WrongStage(1, 0, found=0.0)])
    assert unseen.end_s == calm.end_s
    assert not unseen.notes
    alone = simulate(Job(None, 1.0, num_bytes=0), example_cluster(1, 1), "server", until=Until(steps=4),
                     faults=[WrongStage(0, share=0.5)])  # fmt: skip
    assert alone.end_s == 6.0


def test_a_wrong_stage_computes_with_other_parameters():
    digits = problem("digits-mlp")
    job = Job(digits, 1.0, batch=8, shards=[[5]])
    run = simulate(job, example_cluster(1, 1), "server", until=Until(steps=1), faults=[WrongStage(0, 1, found=0.0)])
    params = digits.init(jax.random.PRNGKey(0))
    wrong = params | {"out": jax.tree_util.tree_map(lambda x: 3 * x, params["out"])}
    gradient = jax.grad(digits.loss)(wrong, tuple(array[5:6] for array in digits.train))
    expected = jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, gradient)
    np.testing.assert_allclose(run.params, ravel_pytree(expected)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("made", "said"), [
    (lambda: WrongStage(0, 2), r"stage is 2, but must be one of 0\.\.1"),
    (lambda: WrongStage(0, found=1.5), "found is 1.5, but must be from 0 to 1"),
    (lambda: trained("server", [WrongStage(0, stages=5)]), "stages is 5, but must be at most 4"),
    (lambda: SynchronousServer(rule="kram"), "did you mean 'krum'"),
    (lambda: SynchronousServer(rule="zeno", wrong=1), "without fresh samples"),
    (lambda: SynchronousServer(rule="median", wrong=1), "must be 0 for the rule 'median'"),
    (lambda: trained(SynchronousServer(rule="krum", wrong=3), []), "replicas is 7, but must be at least 9"),
    (lambda: WrongGradient(0, "mimic"), "attack is 'mimic'"),
    (lambda: trained("server", [WrongGradient(7)]), "worker is 7"),
])  # fmt: skip
def test_bad_input_is_told(made, said):
    with pytest.raises(ValueError, match=said):
        made()
