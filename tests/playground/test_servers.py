"""Servers whose workers, or who themselves, are lost and come back."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.playground import Job, problem
from alpa_dejavu.playground.exchanges import (
    AsynchronousServer,
    RollingServer,
    ShardedServer,
    StaleSynchronousServer,
    SynchronousServer,
    ZenoServer,
)
from alpa_dejavu.playground.fault import Crash, WrongGradient
from alpa_dejavu.playground.testing import check_exchange
from seen_training import simulated

IN_STEP = [SynchronousServer(), ShardedServer(1), StaleSynchronousServer(0)]
SERVERS = [*IN_STEP, SynchronousServer(backups=1), StaleSynchronousServer(2), AsynchronousServer()]


def times(compute_s):
    return Job(None, compute_s, num_bytes=8.0)


def counted(run):
    return int(run.staleness.sum()) + run.lost_updates


@pytest.mark.parametrize("way", IN_STEP)
def test_a_lost_worker_s_gradient_doesn_t_stand_for_another_s(way):
    run = simulated(times((1.0, 1.0, 3.0)), (1, 3), way, steps=4, faults=[Crash(1, 1.5)])
    assert run.end == "steps"
    assert run.end_s == pytest.approx(4 * 3.0, rel=1e-3)  # the slowest one's, each time
    assert run.worker_steps.tolist() == [4, 1, 4]
    assert run.staleness.tolist() == [9]  # that of the lost worker had come, and is applied with the others
    assert run.lost_updates == 0


def test_servers_that_lose_a_worker_are_the_same_to_the_bit():
    job = Job(problem("sparse-least-squares"), (1.0, 1.0, 3.0, 1.0), side_by_side=False)
    fault = Crash(1, 1.5)
    runs = [simulated(job, (1, 4), way, steps=4, faults=[fault], looks=0, seed=3)
            for way in (RollingServer(), *IN_STEP)]  # fmt: skip
    for run in runs:
        assert run.end == "steps"
        assert run.params.tobytes() == runs[0].params.tobytes()


@pytest.mark.parametrize("way", SERVERS)
def test_no_gradient_is_counted_twice_whoever_is_lost_whenever(way):
    job = dataclasses.replace(times((1.0, 1.3, 1.7, 1.1)), num_bytes=1e8)  # a tenth of a second for each message
    for at_s in np.linspace(0.1, 5.0, 25):
        for back_s in (None, at_s + 0.05, at_s + 1.0):
            run = simulated(job, (2, 2), way, seconds=20.0, faults=[Crash(1, at_s, back_s)])
            under_way = 1  # when it was lost
            assert counted(run) <= run.worker_steps.sum() + under_way, (at_s, back_s)
            assert (run.staleness >= 0).all()
            if back_s is None or isinstance(way, (SynchronousServer, AsynchronousServer)):
                assert run.worker_steps[[0, 2, 3]].min() >= 8, (at_s, back_s, run.end)


@pytest.mark.parametrize("backups", [1, 2])
def test_backup_workers_have_all_their_steps(backups):
    run = simulated(times((1.0, 1.0, 1.0, 1.5)), (1, 4), SynchronousServer(backups), steps=10)
    assert run.end == "steps"
    assert run.worker_steps.tolist() == [10] * 4
    assert counted(run) == 40
    assert run.end_s == pytest.approx(15.0, rel=1e-3)


@pytest.mark.parametrize("way", [AsynchronousServer(), SynchronousServer(), StaleSynchronousServer(1)])
def test_a_server_that_comes_back_says_what_is_undone(way):
    # All compute when it is lost, and when it comes back, so that none waits in vain.
    job = Job(problem("sparse-least-squares"), (2.0, 2.1, 2.2))
    before, run = (
        simulated(job, (1, 3), way, seconds=seconds, faults=[Crash(0, 20.5, 20.6)], looks=0)
        for seconds in (20.49, 60.0)
    )
    applied = int(before.staleness.sum())
    assert applied >= 24
    assert before.notes == ()
    assert run.notes[0].startswith("the server on worker 0 was lost with its parameters, and began again")
    assert run.lost_updates >= applied
    assert (run.staleness >= 0).all()
    assert counted(run) <= run.worker_steps.sum() + 1  # one was under way


WORKERS = 5


def trained(server, faults=(), steps=40, **more):
    job = Job(problem("digits-mlp"), 1.0, batch=32, **more)
    return simulated(job, (1, WORKERS), server, steps=steps, faults=faults, looks=4, seed=1)


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


@pytest.mark.parametrize(("settings", "said"), [
    ({"samples": 0}, "samples is 0, but must be"),
    ({"penalty": -1.0}, "penalty is -1.0, but must be"),
    ({"server": 5}, "server is 5, but must be one of 0..4"),
])  # fmt: skip
def test_wrong_settings_are_told(settings, said):
    with pytest.raises(ValueError, match=said):
        trained(ZenoServer(**settings))
