"""Checkpoint and restart: by hand, against the expectation's formula, and the best interval against all others."""

import pytest

from alpa_dejavu.playground import Job, problem
from alpa_dejavu.playground.exchanges import CheckpointedAllReduce, best_checkpoint_interval_s
from alpa_dejavu.playground.fault import Crash, DrawnCrashes
from seen_training import simulated


def test_a_lost_worker_takes_all_back_to_the_checkpoint_by_hand():
    way = CheckpointedAllReduce(steps=4, write_s=0.5, restart_s=2.0)
    run = simulated(Job(None, 1.0, num_bytes=0), (1, 3), way, seconds=12.8, faults=[Crash(2, 6.2)])
    # Steps 1 to 4 until 4, written at 4.5, step 5 until 5.5 is lost; again from 8.2, 5 to 8 until 12.2 by two workers.
    assert int(run.staleness.sum()) == 4 * 3 + 4 * 2
    assert run.lost_updates == 3 + 3
    assert run.worker_steps.tolist() == [5 + 4, 5 + 4, 5]


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
