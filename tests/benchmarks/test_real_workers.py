"""Exchanges run by real processes: the same losses as simulated ones, and nothing is left of them."""

import contextlib
import os
import pathlib
import re

import numpy as np
import pytest

import playground_real
from alpa_dejavu.playground import Job, Until, problem, simulate
from alpa_dejavu.playground.exchanges import StaleSynchronousServer
from alpa_dejavu.playground.fault import Crash
from alpa_dejavu.testing import example_cluster
from real_hosts import NotShownError, network, quotas
from real_hosts.workers import real_workers

pytestmark = pytest.mark.slow
STEPS = Until(steps=4)
WORKERS = 3
SYNCHRONOUS = [*playground_real.SYNCHRONOUS, "stale-server"]
COUNTED = "staleness", "worker_steps", "links", "link_bytes", "link_messages"


@pytest.fixture(scope="module")
def job():
    return Job(problem("digits-mlp"), 0.01, num_bytes=2e4, hosts=tuple(range(WORKERS)))


@pytest.fixture(scope="module")
def workers(job):
    """Processes, and what was left of them when they ended."""
    try:
        with network(1), quotas(1):
            pass
    except NotShownError as error:
        pytest.skip(str(error))
    with real_workers(job, example_cluster(WORKERS, 1)) as started:
        folders = folders_of_children()
        assert len(processes(folders)) > WORKERS
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


@pytest.mark.ray
@pytest.mark.parametrize("exchange", SYNCHRONOUS)
def test_synchronous_losses_and_counts_are_those_of_a_simulation(exchange, workers, measured):
    exchange = StaleSynchronousServer(0) if exchange == "stale-server" else exchange
    predicted = simulate(*measured, exchange, until=STEPS, seed=3, looks=4)
    real = workers.run(exchange, until=STEPS, seed=3, looks=4)
    assert real.end == "steps"
    np.testing.assert_allclose(real.loss[-1], predicted.loss[-1], atol=1e-6)
    np.testing.assert_allclose(real.params, predicted.params, atol=1e-6)
    for name in COUNTED:
        np.testing.assert_array_equal(getattr(real, name), getattr(predicted, name), err_msg=name)
    assert (real.steps[-1], real.samples[-1]) == (predicted.steps[-1], predicted.samples[-1])
    assert real.end_s > real.busy_s.max() > 0


@pytest.mark.ray
@pytest.mark.parametrize("name", sorted({*playground_real.POLICIES}.difference(SYNCHRONOUS)))
def test_no_gradient_of_other_exchanges_is_counted_twice_or_forgotten(name, workers):
    real = workers.run(name, until=STEPS, seed=3, looks=4)
    assert real.end == "steps"
    assert real.worker_steps.tolist() == [STEPS.steps] * WORKERS
    assert real.staleness.sum() + real.lost_updates == real.steps[-1] == WORKERS * STEPS.steps
    assert real.loss[-1] < real.loss[0]


@pytest.mark.ray
def test_a_worker_is_killed_and_the_others_go_on(workers):
    real = workers.run("async-server", until=STEPS, seed=3, faults=[Crash(2, 0.0)], looks=4)
    assert real.end == "steps"
    assert real.worker_steps.tolist()[:2] == [4, 4]
    assert real.worker_steps[2] < 4
    again = workers.run("async-server", until=STEPS, seed=3, looks=0)
    assert again.worker_steps.tolist() == [4, 4, 4]


@pytest.mark.ray
def test_a_worker_that_has_the_server_is_killed_and_the_others_stall(workers):
    real = workers.run("server", until=Until(steps=40), faults=[Crash(0, 0.1)], looks=0)
    assert real.end.startswith("stalled: nothing is under way any more")
    assert "{1: ['params'], 2: ['params']}" in real.end
