"""Intervals of workers' time: who computes, sends and has failed, from when to when."""

import numpy as np
import pytest

from alpa_dejavu.playground import Exchange, Job
from alpa_dejavu.playground.fault import Crash, SlowDown
from alpa_dejavu.playground.history import COMPUTING, FAILED, SENDING
from seen_training import simulated

ALONE = Job(None, 1.0, num_bytes=1e9)


class Sender(Exchange):
    """Computes, sends to the worker two places further on, and waits for nothing."""

    def run(self, worker):
        while True:
            yield worker.compute()
            if worker.number < 2:
                worker.send(worker.number + 2, "x", None, 1e9)


def rows(history, kind):
    kept = history.timeline[history.timeline["kind"] == kind]
    return [(int(r["worker"]), int(r["other"]), float(r["start_s"]), float(r["end_s"])) for r in kept]


def test_intervals_are_those_by_hand():
    # Both messages of host 0 share a card of 1e9 bytes a second; worker 1 is lost in its second gradient.
    faults = [Crash(1, 1.5, 2.25), SlowDown(3, 2.0)]
    history = simulated(ALONE, (2, 2), Sender(), seconds=3.0, faults=faults, intervals=99)
    assert rows(history, FAILED) == [(1, -1, 1.5, 2.25)]
    assert [row for row in rows(history, COMPUTING) if row[0] in (1, 3)] == [
        (1, -1, 0.0, 1.0), (3, -1, 0.0, 2.0), (1, -1, 1.0, 1.5), (3, -1, 2.0, 3.0), (1, -1, 2.25, 3.0),
    ]  # fmt: skip
    # Half the rate until 1.5 s, all of it for the other three quarters, and the latency of 0.1 ms; the second message
    # is sent at 2 s and goes behind the first one; the end cuts it.
    first, lost, second = rows(history, SENDING)[:3]
    assert first == (0, 2, 1.0, pytest.approx(2.2501))
    assert lost == (1, 3, 1.0, 1.5)
    assert second == (0, 2, 2.0, 3.0)


@pytest.mark.parametrize("way", ["all-reduce", "async-server", "gossip", "ad-psgd", "rolling-server"])
def test_they_agree_with_what_is_counted(way):
    job = Job(None, 1e-3, num_bytes=1e5, spread=0.3)
    history, plain = (simulated(job, (2, 2), way, steps=6, seed=1, intervals=count) for count in (9999, 0))
    kept = history.timeline
    computing = kept[kept["kind"] == COMPUTING]
    spent = np.bincount(computing["worker"], computing["end_s"] - computing["start_s"], minlength=4)
    np.testing.assert_allclose(spent, history.busy_s, rtol=1e-12)
    assert np.bincount(computing["worker"]).tolist() == history.worker_steps.tolist()
    assert (kept["kind"] == SENDING).sum() == history.link_messages.sum()
    assert (np.diff(kept["start_s"]) >= 0).all()
    assert (kept["end_s"] <= history.end_s).all()
    assert len(plain.timeline) == 0
    np.testing.assert_allclose(plain.time_s, history.time_s, rtol=1e-9)
    assert plain.sent_bytes[-1] == pytest.approx(history.num_bytes)
