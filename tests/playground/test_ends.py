"""What the loss of a worker or of a link means for an exchange that is under way, and why a run ends."""

import numpy as np
import pytest

from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.playground import EXCHANGES, Exchange, Job, Until, simulate
from alpa_dejavu.playground._recorder import Recorder
from alpa_dejavu.playground._virtual_world import VirtualWorld
from alpa_dejavu.playground.exchanges import AllReduce, LocalSteps, PipeDream, _all_reduce
from alpa_dejavu.playground.fault import Crash, LinkRate, SlowDown


def hosts(count, devices=1):
    return named_cluster("p3.16xlarge", count, devices)


def seconds(compute_s, num_bytes=8.0):
    return Job(None, compute_s, num_bytes=num_bytes)


@pytest.fixture
def world(monkeypatch):
    """The worlds that were simulated, the last one last."""
    made, begin = [], VirtualWorld.begin
    monkeypatch.setattr(VirtualWorld, "begin", lambda self, exchange: (made.append(self), begin(self, exchange)))
    return made


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical"])
@pytest.mark.parametrize("way", [AllReduce, lambda algorithm: LocalSteps(1, algorithm), lambda _: PipeDream(1)])
def test_who_begins_after_a_loss_takes_nothing_of_the_lost_one(way, algorithm, world, monkeypatch):
    counts, mean = [], _all_reduce.mean
    monkeypatch.setattr(_all_reduce, "mean", lambda vectors: (counts.append(len(vectors)), mean(vectors))[1])
    run = simulate(seconds([1.0, 2.0, 2.0]), hosts(3), way(algorithm), until=Until(steps=2), faults=[Crash(0, 1.5)])
    assert (run.end, counts) == ("steps", [2, 2])
    assert not world[-1].board


def test_who_began_before_a_loss_stalls(world):
    run = simulate(seconds([1.0, 1.0, 2.0]), hosts(3), "all-reduce", until=Until(steps=2), faults=[Crash(0, 1.5)])
    assert run.end.startswith("stalled")
    assert (run.worker_steps.tolist(), run.staleness.tolist()) == ([1, 1, 1], [])


def test_an_average_of_a_partner_that_is_lost_is_not_taken_in_a_later_round(monkeypatch):
    waited, used = [], Recorder.used

    def watched(self, message, receiver):
        waited.append(self.world.now_s - message.sent_s)
        used(self, message, receiver)

    monkeypatch.setattr(Recorder, "used", watched)
    run = simulate(seconds(1.0), hosts(2), "ad-psgd", until=Until(steps=9), faults=[Crash(1, 2.5, 2.7)])
    assert run.end == "steps"
    assert len(waited) > 12
    assert max(waited) < 1.0


@pytest.mark.parametrize("name", sorted(EXCHANGES))
def test_a_link_that_is_cut_at_the_end_is_waited_for(name):
    # Either nothing was to be sent over the link any more, or all of it arrives.
    job, until = seconds(1.0, 1e8), Until(steps=2)
    whole = simulate(job, hosts(2), name, until=until, looks=1)
    for cut_s in (1.001, 2.001, 2.02):
        run = simulate(job, hosts(2), name, until=until, looks=1, faults=[LinkRate((0, 1), 0.0, cut_s, 50.0)])
        assert run.end == whole.end == "steps"
        assert run.worker_steps.tolist() == [2, 2]
        assert run.steps[-1] == whole.steps[-1] == 4
        assert run.lost_updates == 0


def test_the_seconds_of_a_last_exchange_over_a_cut_link_are_those_by_hand():
    # Half of the bytes take half a second, twice, besides the latency; from 1.25 to 3.25 nothing passes.
    run = simulate(seconds(1.0, 3.125e9), hosts(2), "all-reduce", until=Until(steps=1),
                   faults=[LinkRate((0, 1), 0.0, 1.25, 3.25)])  # fmt: skip
    assert (run.end, run.end_s) == ("steps", pytest.approx(4.00006, abs=1e-6))


def test_a_loss_in_the_last_exchange_stalls_the_rest_and_is_said():
    run = simulate(seconds(1.0, 3.125e9), hosts(2, 2), "all-reduce", until=Until(steps=1), faults=[Crash(3, 1.1)])
    assert run.end.startswith("stalled")
    assert run.steps[-1] == 0


@pytest.mark.parametrize("faults", [[], [SlowDown(2, 2.0, 0.0, 100.0)], [SlowDown(2, 2.0, 0.0, 20.0)]])
def test_a_stall_is_said_whatever_other_faults_are_to_come(faults):
    run = simulate(seconds(1.0, 1e9), hosts(1, 4), "all-reduce", until=Until(seconds=50.0),
                   faults=[Crash(1, 1.01), *faults])  # fmt: skip
    assert run.end.startswith("stalled")
    assert run.steps[-1] == 0


def test_the_loss_of_all_workers_is_said_whatever_other_faults_are_to_come():
    run = simulate(seconds(1.0), hosts(1, 1), "local-sgd", until=Until(seconds=50.0),
                   faults=[Crash(0, 2.5), SlowDown(0, 2.0, 0.0, 100.0)])  # fmt: skip
    assert run.end == "no worker is left"


def test_what_waits_for_a_link_that_is_mended_after_the_end_has_not_stalled():
    run = simulate(seconds(1.0, 1e9), hosts(2), "all-reduce", until=Until(seconds=50.0),
                   faults=[LinkRate((0, 1), 0.0, 1.01, 100.0)])  # fmt: skip
    assert (run.end, run.end_s) == ("time", 50.0)


@pytest.mark.parametrize("compute_s", [0.0, [0.0]])
def test_gradients_without_seconds_need_a_number_of_steps(compute_s):
    with pytest.raises(ValueError, match=r"compute_s is \[?0\.0\]?, but must be above 0 where until.steps is None"):
        simulate(seconds(compute_s), hosts(1), "local-sgd", until=Until(seconds=3.0))
    run = simulate(seconds(compute_s), hosts(1), "local-sgd", until=Until(seconds=3.0, steps=4))
    assert (run.end, run.steps[-1], run.end_s) == ("steps", 4, 0.0)


def test_looks_are_at_seconds_or_steps_whichever_come_first():
    def times(**until):
        return simulate(seconds(0.01), hosts(2), "async-server", until=Until(**until), looks=10).time_s.tolist()

    assert times(seconds=3.0, steps=100_000) == times(seconds=3.0) == pytest.approx([0.3 * n for n in range(11)])
    assert times(seconds=1e6, steps=100) == times(steps=100)
    # Half of the steps come within the first 0.5 of 10 seconds, the others take 0.2 seconds each.
    slow = [SlowDown(n, 20.0, 0.5) for n in range(2)]
    run = simulate(seconds(0.01), hosts(2), "local-sgd", until=Until(seconds=10.0, steps=100), looks=10, faults=slow)
    assert run.end == "time"
    assert np.diff(np.maximum(run.steps / 200, run.time_s / 10)).max() < 0.1 + 1e-9


def test_a_worker_that_had_its_steps_loses_no_gradient():
    run = simulate(seconds([1.0, 3.0]), hosts(2), "local-sgd", until=Until(steps=2), faults=[Crash(0, 4.0)])
    assert (run.worker_steps.tolist(), run.lost_updates) == ([2, 2], 0)


@pytest.mark.parametrize("back_s", [None, 1.00004])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_message_in_its_latency_is_lost_with_its_sender_and_its_receiver(lost, back_s):
    # Sent at 1, without bytes, it would arrive 6e-5 seconds later or so.
    arrived = []

    class Single(Exchange):
        def run(self, worker):
            if worker.world.now_s:
                return
            if worker.number == 0:
                yield worker.sleep(1.0)
                worker.send(1, "x")
            else:
                yield worker.receive("x")
                arrived.append(worker.world.now_s)

    def simulated(*faults):
        simulate(seconds(1.0), hosts(2), Single(), until=Until(seconds=3.0), faults=faults)
        return arrived

    assert simulated(Crash(lost, 1.00001, back_s)) == []
    assert simulated() == [pytest.approx(1.0, abs=1e-3)]


def test_seconds_of_gradients_that_come_too_late_or_never_are_busy_ones():
    run = simulate(seconds([1.0, 2.0]), hosts(2), "async-server", until=Until(seconds=7.5), faults=[Crash(1, 4.5)])
    assert run.worker_steps.tolist() == [7, 2]
    assert run.busy_s == pytest.approx([7.5, 4.5], abs=1e-2)
    assert run.idle_s == pytest.approx([0.0, 3.0], abs=1e-2)


def test_a_wait_that_is_yielded_again_has_its_own_timeout():
    ended = []

    class Twice(Exchange):
        def run(self, worker):
            if worker.number:
                yield worker.sleep(2.0)
                worker.send(0, "x")
                return
            wait = worker.receive("x", timeout_s=5.0)
            for _ in range(2):
                found = yield wait
                ended.append((round(worker.world.now_s, 2), len(found)))

    simulate(seconds(1.0), hosts(2), Twice(), until=Until(seconds=30.0))
    assert ended == [(2.0, 1), (7.0, 0)]
