"""Faults at given and at drawn times, and what exchanges do about them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from alpa_dejavu.playground import Exchange, Job, problem
from alpa_dejavu.playground.exchanges import RollingServer, SynchronousServer
from alpa_dejavu.playground.fault import (
    Crash,
    DrawnCrashes,
    DrawnSlowDowns,
    Join,
    Partition,
    SlowDown,
    WrongGradient,
    WrongStage,
)
from seen_training import simulated


class Alone(Exchange):
    """Each worker trains for itself."""

    def run(self, worker):
        while True:
            gradient = yield worker.compute()
            worker.update(gradient.values, gradient)


TIME_ALONE = Job(None, 1.0, num_bytes=1)


@pytest.fixture(scope="module")
def least():
    return problem("sparse-least-squares")


def test_messages_between_parts_wait_and_those_within_don_t():
    runs = {}
    for faults in ((), (Partition(((0,), (1, 2)), 0.5, 7.5),)):
        arrived = runs[faults] = {}

        class Script(Exchange):
            def run(self, worker, arrived=arrived):
                for target, num_bytes in ((1, 0.0), (2, 1e6)):
                    if worker.number != target and worker.number < 2:
                        yield worker.sleep(1.0)
                        worker.send(target, worker.number, None, num_bytes)
                if worker.number == 2:
                    for source in (1, 0):
                        yield worker.receive(source)
                        arrived[source] = worker.world.now_s
                if worker.number == 1:
                    yield worker.receive(0)
                    arrived["empty"] = worker.world.now_s

        simulated(TIME_ALONE, (3, 1), Script(), seconds=20.0, faults=faults)
    free, cut = runs.values()
    assert free == {1: pytest.approx(1.0011), 0: pytest.approx(2.0011), "empty": pytest.approx(1.0001)}
    assert cut == {1: pytest.approx(1.0011), 0: pytest.approx(7.5011), "empty": pytest.approx(7.5001)}


def test_drawn_crashes_come_at_their_rate_and_leave_their_share_of_time():
    n, seconds = 50, 400.0
    run = simulated(TIME_ALONE, (1, n), Alone(), seconds=seconds, seed=3, faults=[DrawnCrashes(0.05, 5.0)], looks=0)
    there = 20.0 / (20.0 + 5.0)
    expected = n * seconds * there * 0.05
    assert abs(run.lost_updates - expected) < 4 * np.sqrt(expected)
    never = simulated(TIME_ALONE, (1, n), Alone(), seconds=seconds, seed=3, faults=[DrawnCrashes(0.05)], looks=0)
    assert never.end == "no worker is left"
    assert never.lost_updates <= n


def test_faults_that_can_t_be_are_said_before_anything_runs(least, tmp_path):
    for wrong, said in (
        (lambda: DrawnCrashes(-0.1), "drawn crashes: per_s is -0.1, but must be a finite number of at least 0"),
        (lambda: DrawnSlowDowns(0.1, 0.0, 1.0), "factor is 0.0, but must be"),
        (lambda: SlowDown(0, 2.0, 5.0, 4.0), r"slow-down: until_s is 4.0, but must be after at_s, 5.0"),
        (lambda: Partition(((0,),)), r"groups is \(\(0,\),\), but must be two or more"),
        (lambda: Partition(((0, 1), (1,))), r"must be two or more without a common host"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong()
    for fault, said in (
        (Join(2, 1.0), "worker is 2, but must be one of 0..1"), (SlowDown(-1, 2.0), "worker is -1, but must be one of"),
        (Partition(((0,), (3,))), r"hosts is \(0, 3\), but must be of 0..0"),
        (DrawnCrashes(0.1), "until_s is inf, but must be finite where Until.seconds is inf"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            simulated(Job(least, 1.0), (1, 2), "gossip", steps=1, faults=[fault], folder=tmp_path)
    # The folder isn't taken by the run that couldn't be.
    run = simulated(Job(least, 1.0), (1, 2), "gossip", steps=1, folder=tmp_path)
    assert run.end == "steps"


def slow_links(job):
    return dataclasses.replace(job, num_bytes=1e8)  # a tenth of a second for each message


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1), (2, 1)])
def test_a_rolling_server_goes_on_whoever_is_lost_whenever(updates, victims):
    # Seconds of messages are as long as those between crashes, so that the role is lost in each of its states.
    for at_s in np.linspace(0.0, 6.0, 61):
        faults = [Crash(worker, at_s + 0.13 * k) for k, worker in enumerate(victims)]
        run = simulated(slow_links(TIME_ALONE), (2, 2), RollingServer(updates), steps=12, faults=faults, looks=1)
        assert run.end == "steps", at_s
        assert (run.worker_steps[[n for n in range(4) if n not in victims]] == 12).all()


@pytest.mark.parametrize(("name", "goes_on"), [
    ("all-reduce", False), ("local-sgd", False), ("stale-server", False), ("sharded-server", False), ("server", True),
    ("async-server", True), ("rolling-server", True), ("checkpointed", True), ("gossip", True), ("ad-psgd", True),
])  # fmt: skip
def test_the_page_says_who_takes_workers_in(name, goes_on):
    run = simulated(TIME_ALONE, (1, 4), name, seconds=60.0, faults=[Join(3, 9.3)], looks=0)
    assert (run.worker_steps.min() > 30) == goes_on
    assert run.end == "time" or (not goes_on and run.end.startswith("stalled"))


WORKERS = 7


def trained(server, faults, seed=0):
    job = Job(problem("digits-mlp"), 1.0, batch=32)
    return simulated(job, (1, WORKERS), server, steps=60, faults=faults, seed=seed)


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
    alone = simulated(Job(None, 1.0, num_bytes=0), (1, 1), "server", steps=4, faults=[WrongStage(0, share=0.5)])
    assert alone.end_s == 6.0


@pytest.mark.parametrize(("made", "said"), [
    (lambda: WrongStage(0, 2), r"stage is 2, but must be one of 0\.\.1"),
    (lambda: WrongStage(0, found=1.5), "found is 1.5, but must be from 0 to 1"),
    (lambda: trained("server", [WrongStage(0, stages=5)]), "stages is 5, but must be at most 4"),
    (lambda: SynchronousServer(rule="kram"), "did you mean 'krum'"),
    (lambda: SynchronousServer(rule="zeno", wrong=1), "without fresh samples"),
    (lambda: SynchronousServer(rule="median", wrong=1), "must be 0 for the rule 'median'"),
    (lambda: trained(SynchronousServer(rule="krum", wrong=3), []), "replicas is 7, but must be at least 9"),
    (lambda: WrongGradient(0, "mimic"), "attack is 'mimic'"),
])  # fmt: skip
def test_bad_input_is_told(made, said):
    with pytest.raises(ValueError, match=said):
        made()
