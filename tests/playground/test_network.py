"""The simulation's parts: links that are shared, intervals, and functions that are alike."""

import math

import numpy as np
import optax
import pytest

from alpa_dejavu.playground import Exchange, Job, Until, problem, simulate
from alpa_dejavu.playground._gradient import SameCode, programs
from alpa_dejavu.playground._network import Flow, Network
from alpa_dejavu.playground.fault import Crash, SlowDown
from alpa_dejavu.playground.history import COMPUTING, FAILED, SENDING
from alpa_dejavu.testing import example_cluster
from seen_training import simulated


def filled_at_once(capacity, flows):
    """All rates grow together; who meets a full resource, or a limit, stops: by small steps of exact events."""
    rates, growing = [0.0] * len(flows), set(range(len(flows)))
    while growing:
        room = [min((most - rates[n]) for n, (_, most) in enumerate(flows) if n in growing)]
        for resource, whole in enumerate(capacity):
            over = [n for n in growing if resource in flows[n][0]]
            if over:
                used = sum(rate for n, rate in enumerate(rates) if resource in flows[n][0])
                room.append((whole - used) / len(over))
        for n in growing:
            rates[n] += min(room)
        used = [sum(rate for n, rate in enumerate(rates) if r in flows[n][0]) for r in range(len(capacity))]
        growing -= {
            n for n in growing
            if rates[n] >= flows[n][1] * (1 - 1e-12)
            or any(used[r] >= capacity[r] * (1 - 1e-12) for r in flows[n][0])
        }  # fmt: skip
    return rates


@pytest.mark.parametrize("seed", range(40))
def test_what_is_settled_step_by_step_is_what_filling_all_anew_gives(seed):
    draw = np.random.default_rng(seed)
    capacity = draw.integers(1, 20, draw.integers(2, 9)).astype(float).tolist()
    network, there = Network(), []
    for rate in capacity:
        network.add_resource(rate)
    for step in range(60):
        if there and draw.random() < 0.4:
            network.stop(there.pop(int(draw.integers(len(there)))).stream)
        else:
            over = draw.choice(len(capacity), min(int(draw.integers(1, 4)), len(capacity)), replace=False)
            most = float(draw.integers(1, 30)) if draw.random() < 0.5 else math.inf
            there.append(Flow(tuple(over.tolist()), most, 1e9, None))
            network.start(there[-1], float(step))
        if draw.random() < 0.2:
            resource = int(draw.integers(len(capacity)))
            capacity[resource] = float(draw.integers(1, 20))
            network.set_capacity(resource, capacity[resource])
        network.settle(float(step))
        if there:
            wanted = filled_at_once(capacity, [(set(flow.over), min(flow.most, 1e6)) for flow in there])
            np.testing.assert_allclose([flow.rate for flow in network.flows()], wanted, rtol=1e-7)


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


def made(value, *more, default=None):
    def inner(x, y=default):
        return value, more, x, y

    return inner


SAME = [
    (made(1), made(1)), (made((1, "a")), made((1, "a"))), (made(made(0.5)), made(made(0.5))),
    (made(1, default=2), made(1, default=2)),
]  # fmt: skip


@pytest.mark.parametrize("pair", SAME)
def test_functions_that_do_the_same(pair):
    one, other = (SameCode((each,)) for each in pair)
    assert one == other
    assert hash(one) == hash(other)


def test_problems_and_optimizers_made_anew_are_compiled_once():
    first = programs(problem("digits-mlp"), optax.adam(1e-3))
    assert programs(problem("digits-mlp"), optax.adam(1e-3)) is first
    assert programs(problem("digits-mlp"), optax.adam(2e-3)) is not first
    assert programs(problem("digits-cnn"), optax.adam(1e-3)) is not first
    job, cluster = Job(problem("digits-mlp"), 1.0, 4, optax.sgd(0.5)), example_cluster(2, 1)
    runs = [simulate(job, cluster, "all-reduce", until=Until(steps=2)), None]
    again = Job(problem("digits-mlp"), 1.0, 4, optax.sgd(0.5))
    runs[1] = simulate(again, cluster, "all-reduce", until=Until(steps=2))
    assert runs[0].same(runs[1])
