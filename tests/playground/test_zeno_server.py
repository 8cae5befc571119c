"""Zeno++ as an exchange: a server that takes what agrees with a gradient that it trusts."""

import numpy as np
import pytest

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import AsynchronousServer, ZenoServer
from alpa_dejavu.playground.fault import Crash, WrongGradient
from alpa_dejavu.playground.testing import check_exchange
from alpa_dejavu.testing import example_cluster

WORKERS = 5


def trained(server, faults=(), steps=40, **more):
    job = Job(problem("digits-mlp"), 1.0, batch=32, **more)
    return simulate(job, example_cluster(1, WORKERS), server, until=Until(steps=steps), faults=faults, looks=4, seed=1)


@pytest.mark.parametrize("settings", [{"every": 1}, {"samples": 4, "every": 9, "server": 3}])
def test_it_keeps_the_contract(settings):
    check_exchange(ZenoServer(**settings))


def test_most_workers_may_be_wrong():
    faults = [WrongGradient(1), WrongGradient(2), WrongGradient(4, "not-finite")]
    calm, spoilt, survived = (trained(*one) for one in (
        (ZenoServer(),), (AsynchronousServer(), faults), (ZenoServer(), faults)
    ))  # fmt: skip
    assert not spoilt.loss[-1] < calm.loss[0]
    assert survived.loss[-1] < 0.5 * survived.loss[0]
    # Only those of the two right workers are applied, as calm training has all of them: a few by chance aren't.
    assert survived.lost_updates >= 3 * 40 * 0.9
    assert calm.lost_updates < 0.1 * calm.steps[-1]
    named = {int(note.split("worker ")[1].split()[0]) for note in survived.notes}
    assert named == {1, 2, 4}
    assert calm.notes == ()


def test_one_gradient_is_judged_by_hand():
    """With one worker the first update is its gradient at the length of the trusted one."""
    run, long = (trained(ZenoServer(every=100), steps=steps) for steps in (1, 2))
    assert run.lost_updates == 0
    assert long.staleness.sum() == 2 * WORKERS
    one = simulate(Job(problem("digits-mlp"), 1.0, batch=32), example_cluster(1, 1), ZenoServer(samples=1437),
                   until=Until(steps=1), looks=0, seed=1)  # fmt: skip
    start = simulate(Job(problem("digits-mlp"), 1.0, batch=32), example_cluster(1, 1), ZenoServer(),
                     until=Until(seconds=0.5), looks=0, seed=1).params  # fmt: skip
    whole = simulate(Job(problem("digits-mlp"), 1.0, batch=1437), example_cluster(1, 1), "server",
                     until=Until(steps=1), looks=0, seed=1).params  # fmt: skip
    # The trusted one is on as many samples as there are, drawn with replacement: as long as that on all, nearly.
    assert np.linalg.norm(one.params - start) == pytest.approx(np.linalg.norm(whole - start), rel=0.1)


def test_a_server_that_is_lost_begins_anew():
    run = trained(ZenoServer(), [Crash(0, 10.2, 10.7)], steps=20)
    assert run.end == "steps"
    assert any("began again with those of the beginning" in note for note in run.notes)


@pytest.mark.parametrize(("settings", "said"), [
    ({"samples": 0}, "samples is 0, but must be"),
    ({"every": 0}, "every is 0, but must be"),
    ({"rate": 0.0}, "rate is 0.0, but must be"),
    ({"penalty": -1.0}, "penalty is -1.0, but must be"),
    ({"server": 5}, "server is 5, but must be one of 0..4"),
])  # fmt: skip
def test_wrong_settings_are_told(settings, said):
    with pytest.raises(ValueError, match=said):
        trained(ZenoServer(**settings))
