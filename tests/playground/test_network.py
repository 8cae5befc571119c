"""Max-min fair rates against progressive filling by brute force, and against what a hand works out."""

import math

import numpy as np
import pytest

from alpa_dejavu.playground._network import Flow, Network


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


def test_a_message_whose_share_changes_ends_when_its_bytes_have_passed():
    network = Network()
    link = network.add_resource(10.0)
    network.start(Flow((link,), 100.0, 20.0, "first"), 0.0)
    network.settle(0.0)
    assert network.next_s() == 2.0
    network.start(Flow((link,), 100.0, 20.0, "second"), 1.0)
    network.settle(1.0)
    assert network.next_s() == 3.0  # 10 bytes are left, at 5 a second
    assert network.pop().told == "first"
    network.settle(3.0)
    assert network.next_s() == 4.0  # the second one has 10 left, at 10 a second
    assert network.pop().told == "second"
    assert network.next_s() == math.inf
