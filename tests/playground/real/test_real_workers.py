"""Exchanges run by real processes: the same losses as simulated ones, and nothing is left of them."""

import contextlib
import os
import pathlib
import re

import numpy as np
import pytest

from alpa_dejavu.playground import EXCHANGES, Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import AllReduce, StaleSynchronousServer
from alpa_dejavu.playground.fault import Crash, LinkRate, Partition, SlowDown
from alpa_dejavu.playground.history import COMPUTING, FAILED
from alpa_dejavu.playground.hosts import NotShownError
from alpa_dejavu.playground.real import RealWorkers, real_workers
from alpa_dejavu.playground.real._real_faults import RealFaults
from alpa_dejavu.testing import example_cluster

STEPS = Until(steps=4)
WORKERS = 3
BY_MESSAGES = sorted(name for name, kind in EXCHANGES.items() if kind.by_messages)
SYNCHRONOUS = ["all-reduce", "gossip", "local-sgd", "push-sum", "server", "stale-server"]
COUNTED = "staleness", "worker_steps", "links", "link_bytes", "link_messages"


@pytest.fixture(scope="module")
def job():
    return Job(problem("digits-mlp"), 0.01, num_bytes=2e4, hosts=tuple(range(WORKERS)))


@pytest.fixture(scope="module")
def workers(job):
    """Processes, and what was left of them when they ended."""
    with real_workers(job, example_cluster(WORKERS, 1), shaped=False) as started:
        folders = folders_of_children()
        assert len(processes(folders)) > WORKERS
        assert not wildcard_ports(processes(folders))
        yield started
    assert not processes(folders)


@pytest.fixture(scope="module")
def measured(workers):
    return workers.measured()


def told():
    """The command line and environment of all processes, by their ids."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found[int(entry.name)] = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
    return found


def descendants(pid):
    """The ids of a process's children, and of theirs."""
    found = []
    for children in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in children.read_text().split():
                found += [int(child), *descendants(child)]
    return found


def folders_of_children():
    """The directories of Ray that this process's own descendants name: others on this machine have theirs."""
    known = told()
    every = [known.get(pid, b"") for pid in descendants(os.getpid())]
    return {name for text in every for name in re.findall(rb"/tmp/alpadj-\w+", text)}


def processes(folders):
    """The ids of the processes that name one of these directories."""
    return {pid for pid, text in told().items() if any(folder in text for folder in folders)}


def wildcard_ports(pids):
    """The ports on which processes listen for everybody."""
    sockets = set()
    for pid in pids:
        for descriptor in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.update(re.findall(r"socket:\[(\d+)\]", os.readlink(descriptor)))
            except OSError:
                continue
    tables = (pathlib.Path("/proc/net", name).read_text().splitlines() for name in ("tcp", "tcp6"))
    rows = [line.split() for table in tables for line in table]
    listening = [row for row in rows if row[3:4] == ["0A"] and row[9] in sockets]
    return [row[1] for row in listening if not row[1].partition(":")[0].endswith(("0100007F", "01000000"))]


@pytest.mark.ray
@pytest.mark.parametrize("exchange", [*SYNCHRONOUS, AllReduce("tree")], ids=str)
def test_synchronous_losses_and_counts_are_those_of_a_simulation(exchange, workers, measured):
    exchange = StaleSynchronousServer(0) if exchange == "stale-server" else exchange
    predicted = simulate(*measured, exchange, until=STEPS, seed=3, looks=4)
    real = workers.run(exchange, until=STEPS, seed=3, looks=4, intervals=1000)
    assert real.end == "steps"
    np.testing.assert_allclose(real.loss[-1], predicted.loss[-1], atol=1e-6)
    np.testing.assert_allclose(real.params, predicted.params, atol=1e-6)
    for name in COUNTED:
        np.testing.assert_array_equal(getattr(real, name), getattr(predicted, name), err_msg=name)
    assert (real.steps[-1], real.samples[-1]) == (predicted.steps[-1], predicted.samples[-1])
    assert real.end_s > real.busy_s.max() > 0
    computing = real.timeline[real.timeline["kind"] == COMPUTING]
    np.testing.assert_allclose((computing["end_s"] - computing["start_s"]).sum(), real.busy_s.sum(), rtol=1e-6)


@pytest.mark.ray
@pytest.mark.parametrize("name", sorted({*BY_MESSAGES}.difference(SYNCHRONOUS)))
def test_no_gradient_of_other_exchanges_is_counted_twice_or_forgotten(name, workers):
    real = workers.run(name, until=STEPS, seed=3, looks=4)
    assert real.end == "steps"
    assert real.worker_steps.tolist() == [STEPS.steps] * WORKERS
    assert real.staleness.sum() + real.lost_updates == real.steps[-1] == WORKERS * STEPS.steps
    assert real.loss[-1] < real.loss[0]


@pytest.mark.ray
def test_time_ends_a_run(workers):
    real = workers.run("gossip", until=Until(seconds=0.3), looks=0)
    assert real.end == "time"


@pytest.mark.ray
def test_a_worker_is_killed_and_the_others_go_on(workers):
    real = workers.run("async-server", until=STEPS, seed=3, faults=[Crash(2, 0.0)], looks=4, intervals=1000)
    assert real.end == "steps"
    assert real.worker_steps.tolist()[:2] == [4, 4]
    assert real.worker_steps[2] < 4
    assert FAILED in real.timeline["kind"]
    again = workers.run("async-server", until=STEPS, seed=3, looks=0)
    assert again.worker_steps.tolist() == [4, 4, 4]


@pytest.mark.ray
def test_a_worker_that_has_the_server_is_killed_and_the_others_stall(workers):
    real = workers.run("server", until=Until(steps=40), faults=[Crash(0, 0.1)], looks=0)
    assert real.end.startswith("stalled: nothing is under way any more")
    assert "{1: ['params'], 2: ['params']}" in real.end


def unstarted(job, note=""):
    """Workers that nothing was asked of yet."""
    return RealWorkers(None, job, example_cluster(WORKERS, 1), note)


@pytest.mark.parametrize("name", ["checkpointed", "sharded-server", "rolling-server", "cyclades"])
def test_exchanges_that_share_more_than_messages_are_refused(name, job):
    with pytest.raises(ValueError, match="must be one whose workers know of each other by messages alone"):
        unstarted(job).run(name, until=STEPS)


@pytest.mark.parametrize(
    ("fault", "note", "said"),
    [
        (Crash(1, 1.0, 2.0), "", "killed for good; leave that fault out"),
        (Partition(((0,), (1,)), 1.0), "", "a factor of 0, but real links must carry something"),
        (SlowDown(0, 2.0, 1.0), "no root", "run this as root on Linux"),
        (LinkRate((0, 1), 0.5), "no root", "run this as root on Linux"),
        (SlowDown(0, 20.0, 1.0), "", r"20 times as slow, with 0.\d* of a core, but must have 0.1 at least"),
        (Crash(3, 1.0), "", r"worker is 3, but must be one of 0\.\.2"),
    ],
)
def test_faults_that_cannot_be_for_real_are_refused_before_anything_runs(fault, note, said, job):
    with pytest.raises(ValueError, match=said):
        unstarted(job, note).run("gossip", faults=[fault], until=STEPS)


def test_slow_downs_one_after_the_other_do_not_meet_where_the_clock_is_looked_at_late():
    lost = []
    faults = RealFaults((0, 1), None, None, 0, 60.0, lambda number, now_s: lost.append((number, now_s)), share=0.19)
    faults.begin([SlowDown(1, 1.8, 1.0, 1.35), SlowDown(1, 1.8, 2.0, 2.35), Crash(0, 2.1)])
    faults.go_on(2.2)  # both at once would leave the worker 0.06 of a core
    assert faults.next_s() == 2.35
    assert lost == [(0, 2.2)]


def test_a_fault_changes_what_it_is_of_alone():
    changed = []

    class Watched:
        """Stands for shaped hosts."""

        def slow(self, slower):
            changed.append(("shares", [*slower]))

        def scale(self, rates):
            changed.append(("links", rates(0, 1)))

    faults = RealFaults((0, 1), None, Watched(), 0, 60.0, None)
    faults.begin([SlowDown(1, 1.8, 0.0, 1.0), LinkRate((0, 1), 0.5)])
    faults.go_on(1.0)
    assert changed == [("shares", [1, 1.8]), ("links", 0.5), ("shares", [1, 1])]


def test_time_alone_is_not_run_for_real():
    alone = Job(None, 1.0, num_bytes=1)
    with pytest.raises(ValueError, match="problem is None"), real_workers(alone, example_cluster()):
        pytest.fail("the block must not run")


def test_without_root_hosts_are_no_namespaces(job, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotShownError, match="need root"), real_workers(job, example_cluster(WORKERS, 1), shaped=True):
        pytest.fail("the block must not run")
