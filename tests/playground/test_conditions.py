"""Conditions of eventual convergence: found where they are violated, at the right moment, and nowhere else."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from alpa_dejavu.playground import Exchange, Job, problem
from alpa_dejavu.playground.condition import Connected, SamplesSeen, StalenessAtMost
from alpa_dejavu.playground.fault import Crash, Partition
from alpa_dejavu.playground.scenarios import read_runs, read_scenario, run_scenario, write_runs
from scenario_texts import check_refused
from seen_training import simulated

JOB = Job(None, 1.0, num_bytes=1.0)


class Script(Exchange):
    """Messages at given seconds from one worker to another one, which takes them at once."""

    def __init__(self, messages):
        self.messages = messages

    def run(self, worker):
        worker.spawn(self.take(worker))
        for at_s, source, target in self.messages:
            if source == worker.number and at_s > worker.world.now_s:
                yield worker.sleep(at_s - worker.world.now_s)
                worker.send(target, "x", None, 1.0)
        yield worker.sleep(1e3)

    def take(self, worker):
        while True:
            yield worker.receive("x")


def violated(exchange, condition, seconds, workers=2, faults=(), hosts=2, job=JOB):
    run = simulated(job, (hosts, workers), exchange, seconds=seconds, faults=faults, conditions=[condition], looks=0)
    return run.violated_s[0]


@pytest.mark.parametrize("exchange", ["all-reduce", "server", "gossip", "ad-psgd"])
def test_a_partition_longer_than_the_window_is_found_and_a_shorter_one_isn_t(exchange):
    job = Job(None, 1.0, num_bytes=1.0, hosts=(0, 1, 0, 1))
    for length_s, found in ((0.0, False), (6.0, False), (18.0, True)):
        faults = [Partition(((0,), (1,)), 20.1, 20.1 + length_s)] if length_s else []
        at_s = violated(exchange, Connected(12.0), 100.0, faults=faults, job=job)
        assert (at_s is not None) == found, (exchange, length_s)
        # The last messages between the parts were taken a few seconds before at the earliest, and at 21 at the latest.
        assert not found or 20.1 + 12.0 - 4.0 <= at_s <= 21.0 + 12.0


def test_windows_are_those_of_brute_force():
    draw = np.random.default_rng(5)
    for _ in range(40):
        times = np.sort(draw.uniform(0.1, 30.0, 40))
        messages = [(float(at_s), *map(int, draw.choice(3, 2, replace=False))) for at_s in times]
        window_s = float(draw.uniform(3.0, 9.0))
        found = violated(Script(messages), Connected(window_s), 30.0, workers=3, hosts=1)
        expected = brute_force(messages, window_s, 30.0, 3)
        assert (found is None) == (expected is None)
        assert found is None or found == pytest.approx(expected, abs=1e-3)


def brute_force(messages, window_s, end_s, workers):
    """The first end of a window in which some pair isn't connected: windows begin just after a message."""
    for start_s in [0.0, *[at_s for at_s, _, _ in messages]]:
        if start_s + window_s > end_s:
            return None
        reached = np.eye(workers, dtype=bool)
        for at_s, source, target in messages:
            if start_s < at_s <= start_s + window_s:
                reached[source, target] = True
        for middle, a, b in itertools.product(range(workers), repeat=3):
            reached[a, b] |= reached[a, middle] and reached[middle, b]
        if not reached.all():
            return start_s + window_s
    return None


def test_a_worker_that_never_gets_some_samples_is_found():
    least = problem("sparse-least-squares")
    samples = len(least.train[0])
    halves = [list(range(samples // 2)), list(range(samples // 2, samples))]
    for shards, lost, found in (
        (halves, (), False), ([halves[0], halves[0][:3]], (), True), (halves, [Crash(1, 30.2)], True),
    ):  # fmt: skip
        job = Job(least, 1.0, batch=samples, shards=shards)
        conditions = [SamplesSeen(20.0), SamplesSeen(window_steps=60)]
        run = simulated(job, (1, 2), "async-server", seconds=60.5, faults=lost, looks=0, conditions=conditions)
        assert [at_s is not None for at_s in run.violated_s] == [found, found and not lost]
    # The last gradient of the lost worker was applied at 30; samples that it drew before for the last time end sooner.
    assert 40 < run.violated_s[0] < 50.1


def test_conditions_that_can_t_be_are_said():
    for wrong, said in (
        (lambda: Connected(0.0), "window_s is 0.0, but must be"), (lambda: SamplesSeen(), "there must be a window"),
        (lambda: StalenessAtMost(-1), "versions is -1, but must be"),
        (lambda: simulated(JOB, (1, 2), "gossip", steps=1, conditions=[SamplesSeen(1.0)]),
         "the job's problem is None, but there must be samples"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            wrong()


SCENARIO = """\
version: 1
problem: sparse-least-squares
cluster: {name: p3.8xlarge, hosts: 2}
workers: {hosts: [0, 1, 1]}
compute_s: 0.5
exchanges: [all-reduce, async-server]
conditions:
  - staleness-at-most: {versions: 0}
  - connected: {window_s: 2}
  - samples-seen: {window_steps: 1000000}
until: {steps: 5}
seeds: [0, 1]
looks: 2
"""
NAMES = ("staleness-at-most (versions 0)", "connected (window_s 2)", "samples-seen (window_steps 1000000)")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("conditions")
    (made / "small.yaml").write_text(SCENARIO)
    return made


@pytest.fixture(scope="module")
def scenario(folder):
    return read_scenario(folder / "small.yaml")


@pytest.fixture(scope="module")
def runs(scenario):
    return run_scenario(scenario)


def test_a_file_names_conditions_and_the_hosts_of_workers(scenario):
    expected = StalenessAtMost(0), Connected(2.0), SamplesSeen(window_steps=1_000_000)
    assert scenario.conditions == dict(zip(NAMES, expected, strict=True))
    assert scenario.job.worker_hosts(scenario.cluster) == (0, 1, 1)


def test_a_file_of_runs_keeps_them(runs, folder):
    write_runs(runs, folder / "runs.json")
    read = read_runs(folder / "runs.json")
    assert read.conditions == NAMES
    assert [run.history.violated_s for run in read.runs] == [run.history.violated_s for run in runs.runs]
    data = json.loads((folder / "runs.json").read_text())
    data["runs"][1]["violated_s"].append(1.0)
    (folder / "wrong.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=r"violated_s has 4 elements, but must have 3, one for each condition"):
        read_runs(folder / "wrong.json")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("connected: {window_s: 2}", "conected: {window_s: 2}", "line 9: there is no condition 'conected'"),
        ("window_steps: 1000000", "window_step: 9", "line 10: 'window_step' is no setting"),
        ("versions: 0}", "versions: 0}\n  - staleness-at-most: {versions: 0}", "is there twice"),
        ("problem: sparse-least-squares", "num_bytes: 8", "line 10: samples seen: the job's problem is None"),
        ("[0, 1, 1]", "[0, 1, 2]", "line 4: job: hosts is (0, 1, 2), but must be indices of 0..1"),
        ("{hosts: [0, 1, 1]}", "{hosts: []}", "a list of the index of each worker's host"),
    ],
)
def test_what_cannot_be_is_said_with_its_line(old, new, said, folder):
    check_refused(folder, SCENARIO, old, new, said)
