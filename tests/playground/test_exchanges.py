"""What exchanges compute, against loops of plain JAX, against each other and against formulas."""

import jax
import numpy as np
import optax
import pytest

from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.playground import EXCHANGES, Job, Until, problem, simulate
from alpa_dejavu.playground._learner import batches
from alpa_dejavu.playground.exchanges import (
    AllReduce,
    AsynchronousServer,
    Gossip,
    LocalSteps,
    PushSum,
    RollingServer,
    ShardedServer,
    StaleSynchronousServer,
    SynchronousServer,
)
from alpa_dejavu.playground.testing import check_exchange, check_topology
from alpa_dejavu.playground.topology import TOPOLOGIES, RandomPeers, topology
from alpa_dejavu.problem import Cluster, Device, Link
from seen_training import simulated

STEPS = 12
SYNCHRONOUS = [
    AllReduce("ring"), AllReduce("tree"), AllReduce("hierarchical"), SynchronousServer(), ShardedServer(),
    ShardedServer(2), RollingServer(), RollingServer(5), StaleSynchronousServer(0),
]  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    return problem("digits-mlp")


def plain_loop(digits, optimizer, workers, seed, steps):
    """Synchronous training as a loop of plain JAX over pytrees: no flat vectors, no queue."""
    params = digits.init(jax.random.PRNGKey(seed))
    state = optimizer.init(params)
    rows = [batches(Job(digits, 0.1), seed, worker) for worker in range(workers)]
    gradient, inputs, targets = jax.jit(jax.grad(digits.loss)), *digits.train

    @jax.jit
    def updated(params, state, values):
        changes, state = optimizer.update(values, state, params)
        return optax.apply_updates(params, changes), state

    for _ in range(steps):
        found = []
        for worker in range(workers):
            chosen = next(rows[worker])
            found.append(jax.tree.map(np.asarray, gradient(params, (inputs[chosen], targets[chosen]))))
        total = found[0]
        for one in found[1:]:
            total = jax.tree.map(np.add, total, one)
        params, state = updated(params, state, jax.tree.map(lambda leaf: leaf / np.float32(workers), total))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), optax.sgd(0.05, momentum=0.9), optax.adam(0.01)])
def test_one_by_one_synchronous_exchanges_are_a_plain_loop_to_the_bit(digits, optimizer):
    expected = plain_loop(digits, optimizer, 4, 5, STEPS)
    job = Job(digits, 0.1, optimizer=optimizer, side_by_side=False, spread=0.3)
    for way in SYNCHRONOUS:
        history = simulated(job, (2, 2), way, steps=STEPS, seed=5, looks=0)
        assert history.end == "steps"
        assert history.params.tobytes() == expected.tobytes(), way


@pytest.mark.parametrize("name", sorted(EXCHANGES))
def test_exchanges_keep_the_contract(name):
    check_exchange(EXCHANGES[name]())


@pytest.mark.parametrize("name", sorted(TOPOLOGIES))
@pytest.mark.parametrize("way", [Gossip, PushSum])
def test_gossip_over_each_topology_keeps_the_contract_and_the_mean(name, way):
    check_topology(topology(name))
    check_exchange(way(name), keeps_mean=True, workers=6)


def test_other_settings_keep_the_contract():
    check_exchange(SynchronousServer(backups=1), drops=True)
    check_exchange(StaleSynchronousServer(3), most_staleness=3)
    check_exchange(StaleSynchronousServer(0), most_staleness=0)
    check_exchange(LocalSteps(3))
    check_exchange(AsynchronousServer(server=2))


def linked(hosts, devices):
    within, between = Link(1e-5, 1e10), Link(1e-4, 1e9)
    device = Device("d", 2.0**30, {"float32": 1e12}, 1e12, 1e11)
    return Cluster.uniform("c", [f"h{n}" for n in range(hosts)], device, devices, within, between)


@pytest.mark.parametrize(("hosts", "devices"), [(1, 5), (4, 1), (1, 8)])
def test_a_ring_takes_what_the_alpha_beta_model_says(hosts, devices):
    cluster = linked(hosts, devices)
    history = simulate(Job(None, 0.5, num_bytes=1e6), cluster, AllReduce("ring"), until=Until(steps=2))
    group = Group(cluster, tuple(n for n in range(hosts) for _ in range(devices)))
    assert history.end_s == pytest.approx(2 * (0.5 + float(AlphaBeta().seconds("all_reduce", 1e6, group))), rel=1e-9)


def test_a_tree_takes_its_depth():
    # Two children send at the same time, and halve their parent's port: each of three levels takes two messages' time.
    history = simulate(Job(None, 1.0, num_bytes=1e6), linked(1, 7), AllReduce("tree"), until=Until(steps=1))
    assert history.end_s == pytest.approx(1.0 + 4 * (2 * 1e6 / 1e10 + 1e-5), rel=1e-9)


@pytest.mark.parametrize(
    ("way", "messages", "num_bytes"),
    [
        (AllReduce("ring"), 4 * 6, 6 * 1000.0), (AllReduce("tree"), 2 * 3, 6 * 1000.0),
        (AllReduce("hierarchical"), 4 * (1 + 2 + 1), 4 * (500 + 2 * 250 + 500)), (SynchronousServer(), 6, 6 * 1000.0),
        (ShardedServer(), 2 * 4 * 3, 2 * 4 * 3 * 250.0), (RollingServer(), 2 * 3 + 1, 6 * 1000.0),
        (Gossip("ring"), 8, 8 * 1000.0), (Gossip("one-peer"), 4, 4 * 1000.0), (Gossip("star"), 6, 6 * 1000.0),
        (Gossip(RandomPeers(3)), 12, 12 * 1000.0), (PushSum("one-peer"), 4, 4 * 1004.0),
        (LocalSteps(1), 4 * 6, 6 * 1000.0),
    ],
)  # fmt: skip
def test_messages_and_bytes_of_a_step_are_the_formulas(way, messages, num_bytes):
    # A second step, too: one is the difference, so that nothing of the beginning is in it.
    histories = [simulated(Job(None, 0.1, num_bytes=1000), (2, 2), way, steps=steps) for steps in (8, 9)]
    assert histories[1].link_messages.sum() - histories[0].link_messages.sum() == messages
    assert histories[1].num_bytes - histories[0].num_bytes == num_bytes


def test_names_and_settings_that_can_t_be_are_said():
    for way, said in (
        ("gosip", "there is no exchange named 'gosip'; choose one of"),
        (SynchronousServer(backups=4), "backups is 4, but must be below the 4 workers"),
        (ShardedServer(5), "shards is 5, but must be at most the 4 workers"),
        (Gossip("rign"), "there is no topology named 'rign'"),
    ):
        with pytest.raises(ValueError, match=said):
            simulated(Job(None, 0.1, num_bytes=1), (1, 4), way, steps=1)
    with pytest.raises(ValueError, match="algorithm is 'star', but must be one of 'ring', 'tree'"):
        AllReduce("star")
    with pytest.raises(ValueError, match="compute_s is given for 3 workers, but must be for 4"):
        simulated(Job(None, (1.0,) * 3, num_bytes=1), (1, 4), "gossip", steps=1)
    with pytest.raises(ValueError, match=r"hosts have \[1, 3\] workers, but a hierarchical one needs as many on each"):
        simulated(Job(None, 0.1, num_bytes=1, hosts=(0, 0, 0, 1)), (2, 4), AllReduce("hierarchical"), steps=1)
    with pytest.raises(ValueError, match="seconds is inf and steps is None"):
        Until()
