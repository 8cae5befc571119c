"""Checkpoint and restart: by hand, against the expectation's formula, and the best interval against all others."""

import math

import numpy as np
import pytest

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import CheckpointedAllReduce, best_checkpoint_interval_s
from alpa_dejavu.playground.fault import Crash, DrawnCrashes, Join
from alpa_dejavu.testing import example_cluster

WRITE_S, BETWEEN_S, SECONDS = 2.0, 200.0, 20_000.0


def useful(steps, seed=0):
    """Useful steps in a second of one worker that is lost now and then."""
    run = simulate(Job(None, 1.0, num_bytes=0), example_cluster(1, 1), CheckpointedAllReduce(steps, WRITE_S),
                   until=Until(seconds=SECONDS), faults=[DrawnCrashes(1 / BETWEEN_S, 1e-3)],
                   seed=seed, looks=0)  # fmt: skip
    return int(run.staleness.sum()) / SECONDS


def test_a_lost_worker_takes_all_back_to_the_checkpoint_by_hand():
    way = CheckpointedAllReduce(steps=4, write_s=0.5, restart_s=2.0)
    run = simulate(Job(None, 1.0, num_bytes=0), example_cluster(1, 3), way, until=Until(seconds=12.8),
                   faults=[Crash(2, 6.2)])  # fmt: skip
    # Steps 1 to 4 until 4, written at 4.5, step 5 until 5.5 is lost; again from 8.2, 5 to 8 until 12.2 by two workers.
    assert int(run.staleness.sum()) == 4 * 3 + 4 * 2
    assert run.lost_updates == 3 + 3
    assert run.worker_steps.tolist() == [5 + 4, 5 + 4, 5]


def test_workers_that_come_are_taken_in_at_the_next_checkpoint():
    way = CheckpointedAllReduce(steps=2, write_s=0.0, restart_s=0.5)
    run = simulate(Job(None, 1.0, num_bytes=0), example_cluster(1, 3), way, until=Until(seconds=10.6),
                   faults=[Join(2, 3.0), Crash(0, 5.7, 6.2)])  # fmt: skip
    # Two until 4; from 4.5 three, lost at 5.7; from 6.2 two, until 8.2; from 8.7 three, until 10.7.
    assert run.worker_steps.tolist() == [4 + 1 + 1, 4 + 1 + 2 + 1, 1 + 2 + 1]
    assert int(run.staleness.sum()) == 4 * 2 + 2 * 2 + 3


def test_steps_that_are_useful_are_as_many_as_expected():
    for steps in (10, 28, 80):
        part_s = steps + WRITE_S
        # Until a part of exponential failures is through: M (exp(part / M) - 1) seconds.
        expected = steps / (BETWEEN_S * math.expm1(part_s / BETWEEN_S))
        assert useful(steps) == pytest.approx(expected, rel=0.05)


def test_the_best_interval_is_about_the_best_of_all():
    best = best_checkpoint_interval_s(WRITE_S, BETWEEN_S)
    tried = np.unique(np.round(best * 2.0 ** np.arange(-3, 4)).astype(int)).tolist()
    found = {steps: useful(steps) for steps in tried}
    assert useful(round(best)) > 0.99 * max(found.values())
    assert best / 2 < max(found, key=found.get) < best * 2
    assert found[tried[0]] < 0.9 * max(found.values()) > found[tried[-1]]


def test_training_goes_on_from_the_checkpoint_s_parameters():
    least = problem("sparse-least-squares")
    way = CheckpointedAllReduce(steps=3)
    run, kept = (
        simulate(Job(least, 1.0), example_cluster(1, 2), way, until=Until(seconds=end_s), faults=faults)
        for end_s, faults in ((5.5, [Crash(1, 5.2)]), (3.5, []))
    )
    assert run.params.tobytes() == kept.params.tobytes()
    assert run.lost_updates == 2 * 2 + 2
    crashed = simulate(Job(least, 1.0), example_cluster(1, 4), way, until=Until(seconds=60.5), looks=2,
                       faults=[DrawnCrashes(0.01, 5.0)])  # fmt: skip
    assert crashed.loss[-1] < crashed.loss[0]


def test_settings_that_can_t_be_are_said():
    for settings, said in (
        ({"steps": 0}, "steps is 0, but"), ({"write_s": -1.0}, "write_s is -1.0, but"),
        ({"restart_s": -1.0}, "restart_s is -1.0, but"), ({"algorithm": "r"}, "algorithm is 'r', but"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            CheckpointedAllReduce(**settings)
    with pytest.raises(ValueError, match="between_s is 0, but must be a finite number above 0"):
        best_checkpoint_interval_s(1.0, 0)
