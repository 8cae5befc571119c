"""Exchanges run by real processes: the same losses as simulated ones, and nothing is left of them."""

import os
import pathlib
import re

import numpy as np
import pytest

from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.fault import Crash, LinkRate, Partition, SlowDown
from alpa_dejavu.playground.hosts import NotShownError
from alpa_dejavu.playground.real import RealWorkers, real_workers
from alpa_dejavu.testing import example_cluster

STEPS = Until(steps=4)


@pytest.fixture(scope="module")
def job():
    return Job(problem("digits-mlp"), 0.01, num_bytes=2e4)


def processes():
    """The ids of all processes whose command line or environment names a directory of ours."""
    found = set()
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if b"/tmp/alpadj-" in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue
    return found


def wildcard_ports(pids):
    """The ports on which processes listen for everybody."""
    sockets = set()
    for pid in pids:
        for descriptor in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                sockets.update(re.findall(r"socket:\[(\d+)\]", os.readlink(descriptor)))
            except OSError:
                continue
    rows = [line.split() for name in ("tcp", "tcp6") for line in pathlib.Path("/proc/net", name).read_text().splitlines()]
    listening = [row for row in rows if row[3:4] == ["0A"] and row[9] in sockets]
    return [row[1] for row in listening if not row[1].partition(":")[0].endswith(("0100007F", "01000000"))]


@pytest.mark.ray
def test_losses_are_those_of_a_simulation_and_nothing_is_left(job):
    before, cluster = processes(), example_cluster(2, 1)
    with real_workers(job, cluster, shaped=False) as workers:
        during = processes() - before
        assert len(during) > 2
        assert not wildcard_ports(during)
        told, links = workers.measured()
        predicted = simulate(told, links, "all-reduce", until=STEPS, seed=3, looks=4)
        measured = workers.run("all-reduce", until=STEPS, seed=3, looks=4)
        killed = workers.run("async-server", until=STEPS, seed=3, faults=[Crash(1, 0.0)], looks=4)
    assert measured.end == "steps"
    np.testing.assert_allclose(measured.loss, predicted.loss, atol=1e-6)
    np.testing.assert_allclose(measured.params, predicted.params, atol=1e-6)
    for name in ("steps", "samples", "staleness", "worker_steps", "links", "link_bytes", "link_messages"):
        np.testing.assert_array_equal(getattr(measured, name), getattr(predicted, name), err_msg=name)
    assert measured.end_s > measured.busy_s.max() > 0.5 * min(told.compute_s)
    assert killed.end == "steps"
    assert killed.worker_steps[0] == 4 > killed.worker_steps[1]
    assert processes() <= before


def unstarted(job, note=""):
    """Workers that nothing was asked of yet."""
    return RealWorkers(None, job, example_cluster(2, 1), note)


@pytest.mark.parametrize("name", ["checkpointed", "sharded-server", "rolling-server", "cyclades"])
def test_exchanges_that_share_more_than_messages_are_refused(name, job):
    with pytest.raises(ValueError, match="must be one whose workers know of each other by messages alone"):
        unstarted(job).run(name, until=STEPS)


@pytest.mark.parametrize(
    "fault, note, said",
    [
        (Crash(1, 1.0, 2.0), "", "killed for good; leave that fault out"),
        (Partition(((0,), (1,)), 1.0), "", "a factor of 0, but real links must carry something"),
        (SlowDown(0, 2.0, 1.0), "no root", "run this as root on Linux"),
        (LinkRate((0, 1), 0.5), "no root", "run this as root on Linux"),
        (Crash(2, 1.0), "", r"worker is 2, but must be one of 0\.\.1"),
    ],
)
def test_faults_that_cannot_be_for_real_are_refused_before_anything_runs(fault, note, said, job):
    with pytest.raises(ValueError, match=said):
        unstarted(job, note).run("gossip", faults=[fault], until=STEPS)


def test_time_alone_is_not_run_for_real():
    with pytest.raises(ValueError, match="problem is None"), real_workers(Job(None, 1.0, num_bytes=1), example_cluster()):
        pytest.fail("the block must not run")


def test_without_root_hosts_are_no_namespaces(job, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotShownError, match="need root"), real_workers(job, example_cluster(2, 1), shaped=True):
        pytest.fail("the block must not run")
