"""Workers that send wrong gradients, and servers with rules against them."""

import numpy as np
import pytest

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import SynchronousServer
from alpa_dejavu.playground.fault import WrongGradient
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


@pytest.mark.parametrize(("made", "said"), [
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
