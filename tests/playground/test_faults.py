"""Faults at given and at drawn times, and what exchanges do about them."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from alpa_dejavu.playground import Exchange, Job, problem
from alpa_dejavu.playground.exchanges import AllReduce, AsynchronousServer, RollingServer, SynchronousServer
from alpa_dejavu.playground.fault import (
    Crash,
    DrawnCongestion,
    DrawnCrashes,
    DrawnSlowDowns,
    Join,
    LinkRate,
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


def test_a_worker_that_joins_computes_from_then_on():
    run = simulated(TIME_ALONE, (1, 3), AsynchronousServer(), seconds=10.5, faults=[Join(2, 4.2)])
    assert run.worker_steps.tolist() == [10, 10, 6]


def test_slow_downs_and_link_rates_that_meet_multiply():
    both = [SlowDown(0, 2.0), SlowDown(0, 3.0, 6.0, 18.0)]
    run = simulated(TIME_ALONE, (1, 1), AllReduce(), seconds=30.5, faults=both)
    assert run.worker_steps.tolist() == [3 + 2 + 6]
    job, rates = Job(None, 1.0, num_bytes=1e8), [LinkRate((0, 1), 0.5), LinkRate((1, 0), 0.5, 0.0, 9.0)]
    run = simulated(job, (2, 1), SynchronousServer(), steps=1, faults=rates)
    assert run.end_s == pytest.approx(1 + 2 * (4 * 0.1 + 1e-4))


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


def test_the_end_doesn_t_wait_for_faults():
    faults = [Crash(0, 50.0), Join(1, 90.0), DrawnSlowDowns(0.1, 2.0, 5.0, until_s=1e3)]
    run = simulated(TIME_ALONE, (1, 2), AsynchronousServer(), steps=3, faults=faults)
    assert run.end == "steps"
    assert run.end_s < 50


def test_drawn_crashes_come_at_their_rate_and_leave_their_share_of_time():
    n, seconds = 50, 400.0
    run = simulated(TIME_ALONE, (1, n), Alone(), seconds=seconds, seed=3, faults=[DrawnCrashes(0.05, 5.0)], looks=0)
    there = 20.0 / (20.0 + 5.0)
    expected = n * seconds * there * 0.05
    assert abs(run.lost_updates - expected) < 4 * np.sqrt(expected)
    never = simulated(TIME_ALONE, (1, n), Alone(), seconds=seconds, seed=3, faults=[DrawnCrashes(0.05)], looks=0)
    assert never.end == "no worker is left"
    assert never.lost_updates <= n


def test_drawn_slow_downs_and_congestion_take_their_share():
    seconds = 4000.0
    slow_downs, congestion = [DrawnSlowDowns(0.02, 4.0, 50.0)], [DrawnCongestion(0.01, 0.25, 100.0)]
    slow = simulated(TIME_ALONE, (1, 20), Alone(), seconds=seconds, seed=1, faults=slow_downs, looks=0)
    # Half of the time each is slow; gradients are few steps only at the borders.
    assert slow.worker_steps.mean() == pytest.approx(seconds * (0.5 + 0.5 / 4), rel=0.1)
    job = Job(None, 1e-3, num_bytes=1e9)
    run = simulated(job, (2, 1), SynchronousServer(), seconds=seconds, seed=1, faults=congestion, looks=0)
    assert run.worker_steps[1] == pytest.approx(seconds / 2 * (0.5 + 0.5 / 4), rel=0.25)


def test_drawn_faults_are_the_same_again_and_others_with_another_seed():
    faults = [DrawnCrashes(0.05, 5.0)] * 2
    runs = [simulated(TIME_ALONE, (2, 4), Alone(), seconds=40.0, seed=seed, faults=faults) for seed in (1, 1, 2)]
    assert runs[0].same(runs[1])
    assert not runs[0].same(runs[2])


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


def test_a_rolling_server_repeats_an_update_that_reached_nobody(least):
    # The holder updates after a second and the gradients' 0.1; it is lost before its parameters arrive anywhere.
    job = slow_links(Job(least, 1.0, side_by_side=False))
    job = dataclasses.replace(job, batch=512)
    run = simulated(job, (4, 1), RollingServer(), steps=5, faults=[Crash(0, 1.35)], looks=0)
    assert run.end == "steps"
    assert run.lost_updates == 4 + 1  # the update's gradients, and the one that the lost worker was computing
    assert run.staleness.tolist() == [3 * 5]


def test_a_rolling_server_that_lost_a_worker_before_the_first_update_is_one_without_it(least):
    job = Job(least, 1.0, optimizer=optax.adam(0.05), side_by_side=False)
    lost = simulated(job, (1, 4), RollingServer(), steps=6, faults=[Crash(0, 0.5)], seed=2)
    never = simulated(job, (1, 4), RollingServer(), steps=6, faults=[Crash(0, 0.0)], seed=2)
    assert lost.params.tobytes() == never.params.tobytes()


def test_a_rolling_server_survives_crashes_at_random(least):
    job = dataclasses.replace(slow_links(Job(least, 1.0, optimizer=optax.adam(0.05))), spread=0.3)
    for seed in range(6):
        crashes = [DrawnCrashes(0.02, 4.0)]
        run = simulated(job, (3, 2), RollingServer(2), seconds=60.0, seed=seed, looks=0, faults=crashes)
        assert run.end == "time", seed
        assert run.worker_steps.sum() > 60, seed


@pytest.mark.parametrize("name", ["gossip", "push-sum", "ad-psgd"])
def test_gossip_goes_on_with_who_is_there_and_takes_workers_in(least, name):
    faults = [Crash(1, 3.3), Crash(2, 6.7, 12.2), Join(5, 9.1), DrawnCrashes(0.01, 3.0)]
    for job in (slow_links(TIME_ALONE), dataclasses.replace(slow_links(Job(least, 1.0)), spread=0.3)):
        run = simulated(job, (3, 2), name, seconds=60.0, faults=faults, looks=2, seed=3)
        assert run.end == "time"
        assert run.worker_steps[[0, 2, 3, 4, 5]].min() > 20
        assert job.problem is None or run.loss[-1] < run.loss[0]
    run = simulated(slow_links(TIME_ALONE), (3, 2), name, steps=30, faults=faults[:3])
    assert run.end == "steps"


def test_a_gossip_s_weights_of_who_is_lost_stay_with_the_others():
    # Without gradients the parameters of the rest come to one value between those that they had.
    job = Job(problem("digits-mlp"), 1.0, optimizer=optax.sgd(0.0), own_starts=True)
    run = simulated(job, (1, 4), "gossip", steps=60, faults=[Crash(1, 2.5)], looks=0)
    assert run.end == "steps"
    assert run.consensus[-1] < 1e-4 * run.consensus[0]


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
    alone = simulated(Job(None, 1.0, num_bytes=0), (1, 1), "server", steps=4, faults=[WrongStage(0, share=0.5)])
    assert alone.end_s == 6.0


def test_a_wrong_stage_computes_with_other_parameters():
    digits = problem("digits-mlp")
    job = Job(digits, 1.0, batch=8, shards=[[5]])
    run = simulated(job, (1, 1), "server", steps=1, faults=[WrongStage(0, 1, found=0.0)])
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
])  # fmt: skip
def test_bad_input_is_told(made, said):
    with pytest.raises(ValueError, match=said):
        made()
