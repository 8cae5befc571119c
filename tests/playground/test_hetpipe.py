"""HetPipe: how stale minibatches are, and what waves cost."""

import numpy as np
import pytest

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import AllReduce, HetPipeWaves
from alpa_dejavu.playground.fault import Crash
from alpa_dejavu.playground.testing import check_exchange
from alpa_dejavu.testing import example_cluster
from seen_training import Messages, counting_job


@pytest.mark.parametrize("concurrent", [1, 2, 5])
@pytest.mark.parametrize("distance", [0, 2])
def test_staleness_is_the_papers_and_no_less(concurrent, distance):
    # One worker is ten times as slow, so that the others are as far ahead as they may be.
    most_local, most_global = 0, 0
    for spread in (0.0, 0.7):
        seen = Messages()
        job = counting_job((10.0, 1.0, 1.0, 1.0), spread=spread)
        simulate(job, example_cluster(1, 4), HetPipeWaves(concurrent, distance), until=Until(steps=6 * concurrent),
                 faults=[seen], looks=0)  # fmt: skip
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


def test_one_minibatch_in_flight_and_no_distance_is_synchronous_training():
    job = Job(problem("digits-mlp"), 0.1, spread=0.3)
    one, other = (simulate(job, example_cluster(1, 4), way, until=Until(steps=6), looks=0)
                  for way in (HetPipeWaves(1), AllReduce()))  # fmt: skip
    np.testing.assert_allclose(one.params, other.params, atol=1e-5)


@pytest.mark.parametrize(("steps", "waves"), [(12, 3), (13, 4), (15, 4)])
@pytest.mark.parametrize("spread", [0.0, 0.9])
def test_each_wave_is_sent_and_answered(steps, waves, spread):
    job = Job(None, 0.1, spread=spread, num_bytes=1000)
    history = simulate(job, example_cluster(1, 4), HetPipeWaves(4), until=Until(steps=steps))
    assert (history.link_messages.sum(), history.num_bytes) == (2 * 3 * waves, 2 * 3 * waves * 1000)


def test_who_may_be_ahead_doesn_t_wait_for_the_one_that_is_slow_for_a_while():
    ends = [simulate(Job(None, 1.0, spread=0.8, num_bytes=1e3), example_cluster(1, 4), HetPipeWaves(4, distance),
                     until=Until(steps=80)).end_s for distance in (0, 1, 4)]  # fmt: skip
    assert ends[0] > ends[1] > ends[2]


def test_a_worker_that_is_lost_or_comes_back_holds_nobody_up():
    job = Job(None, 1.0, num_bytes=1e3)
    for back_s in (None, 40.0):
        history = simulate(job, example_cluster(1, 4), HetPipeWaves(2), until=Until(seconds=100.0),
                           faults=[Crash(2, 10.5, back_s)])  # fmt: skip
        assert history.worker_steps[[0, 1, 3]].min() >= 95
