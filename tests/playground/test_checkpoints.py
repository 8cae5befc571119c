"""Checkpoint and restart: by hand, against the expectation's formula, and the best interval against all others."""

import math

import pytest

from alpa_dejavu.playground import Job, problem
from alpa_dejavu.playground.exchanges import CheckpointedAllReduce, best_checkpoint_interval_s
from alpa_dejavu.playground.fault import Crash, DrawnCrashes, Join
from seen_training import simulated

WRITE_S, BETWEEN_S, SECONDS = 2.0, 200.0, 20_000.0


def useful(steps, seed=0):
    """Useful steps in a second of one worker that is lost now and then."""
    job, way = Job(None, 1.0, num_bytes=0), CheckpointedAllReduce(steps, WRITE_S)
    crashes = [DrawnCrashes(1 / BETWEEN_S, 1e-3)]
    run = simulated(job, (1, 1), way, seconds=SECONDS, faults=crashes, seed=seed, looks=0)
    return int(run.staleness.sum()) / SECONDS


def test_a_lost_worker_takes_all_back_to_the_checkpoint_by_hand():
    way = CheckpointedAllReduce(steps=4, write_s=0.5, restart_s=2.0)
    run = simulated(Job(None, 1.0, num_bytes=0), (1, 3), way, seconds=12.8, faults=[Crash(2, 6.2)])
    # Steps 1 to 4 until 4, written at 4.5, step 5 until 5.5 is lost; again from 8.2, 5 to 8 until 12.2 by two workers.
    assert int(run.staleness.sum()) == 4 * 3 + 4 * 2
    assert run.lost_updates == 3 + 3
    assert run.worker_steps.tolist() == [5 + 4, 5 + 4, 5]


def test_workers_that_come_are_taken_in_at_the_next_checkpoint():
    way = CheckpointedAllReduce(steps=2, write_s=0.0, restart_s=0.5)
    run = simulated(Job(None, 1.0, num_bytes=0), (1, 3), way, seconds=10.6, faults=[Join(2, 3.0), Crash(0, 5.7, 6.2)])
    # Two until 4; from 4.5 three, lost at 5.7; from 6.2 two, until 8.2; from 8.7 three, until 10.7.
    assert run.worker_steps.tolist() == [4 + 1 + 1, 4 + 1 + 2 + 1, 1 + 2 + 1]
    assert int(run.staleness.sum()) == 4 * 2 + 2 * 2 + 3


def test_steps_that_are_useful_are_as_many_as_expected():
    for steps in (10, 28, 80):
        part_s = steps + WRITE_S
        # Until a part of exponential failures is through: M (exp(part / M) - 1) seconds.
        expected = steps / (BETWEEN_S * math.expm1(part_s / BETWEEN_S))
        assert useful(steps) == pytest.approx(expected, rel=0.05)


def test_training_goes_on_from_the_checkpoint_s_parameters():
    least = problem("sparse-least-squares")
    way = CheckpointedAllReduce(steps=3)
    run, kept = (
        simulated(Job(least, 1.0), (1, 2), way, seconds=end_s, faults=faults)
        for end_s, faults in ((5.5, [Crash(1, 5.2)]), (3.5, []))
    )
    assert run.params.tobytes() == kept.params.tobytes()
    assert run.lost_updates == 2 * 2 + 2
    crashed = simulated(Job(least, 1.0), (1, 4), way, seconds=60.5, looks=2, faults=[DrawnCrashes(0.01, 5.0)])
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
