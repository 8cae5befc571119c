"""A host is killed while Alpa trains on it: training goes on by the contingency, and computes what it would have."""

import os

import jax
import numpy as np
import pytest
import ray

from alpa_dejavu.alpa.local_cluster import device_answers, local_cluster, lose_device, lose_host
from alpa_dejavu.alpa.resume import AlpaSession, train
from alpa_dejavu.clusters.changed_cluster import without
from alpa_dejavu.planning import plan_model
from alpa_dejavu.planning.changed.kept import Kept

SIZE, LAYERS, BATCH, STEPS, EVERY = 32, 4, 12, 8, 3


def state():
    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(SIZE, SIZE)).astype(np.float32) / SIZE**0.5 for _ in range(LAYERS)]
    return {"weights": weights, "momentum": [np.zeros_like(weight) for weight in weights]}


def batch(number):
    return np.random.default_rng(number).normal(size=(BATCH, SIZE)).astype(np.float32)


def step(state, x):
    def loss(weights):
        made = x
        for weight in weights:
            made = jax.numpy.tanh(made @ weight)
        return ((made - x) ** 2).mean()

    value, gradients = jax.value_and_grad(loss)(state["weights"])
    momentum = jax.tree_util.tree_map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    weights = jax.tree_util.tree_map(lambda w, m: w - 0.5 * m, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum}, value


def model(batch_size):
    shapes = jax.tree_util.tree_map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state())
    return step, (shapes, jax.ShapeDtypeStruct((batch_size, SIZE), np.float32))


def undisturbed():
    now, losses, alone = state(), [], jax.jit(step)
    for number in range(STEPS):
        now, loss = alone(now, batch(number))
        losses.append(float(loss))
    return losses


@pytest.mark.ray
def test_a_killed_host_costs_seconds_and_steps_but_no_person(tmp_path):
    from alpa_dejavu.alpa.ray_cluster import connected_cluster

    with local_cluster(devices=1, hosts=3):
        import alpa

        cluster, asked = connected_cluster(), {"micro_batches": 2, "layers": 2, "contingencies": True}
        planned = plan_model(model, cluster, batch=BATCH, **asked)
        alpa.shutdown()
        killed = []

        def sabotaged(number):
            if number == 5 and not killed:
                killed.append(lose_host())
            return batch(number)

        session = AlpaSession(step, state, sabotaged, tmp_path)
        done = train(session, planned.plan, STEPS, every=EVERY)
        assert killed[0] not in {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        lose_host()
        with pytest.raises(RuntimeError, match="no host of a local cluster can be lost"):
            lose_host()
    assert not ray.is_initialized()
    assert "RAY_TMPDIR" not in os.environ
    (recovery,) = done.recoveries
    print(recovery)
    assert (recovery.failed_step, recovery.resumed_step) == (5, 3)
    assert 0 < recovery.noticed_s < recovery.seconds
    assert done.plan.stages == planned.plan.contingencies[recovery.hosts[0]].stages
    np.testing.assert_allclose(done.losses, undisturbed(), rtol=1e-4)


@pytest.mark.ray
def test_training_runs_on_the_hosts_of_its_plan_where_others_are_there_too(tmp_path):
    from alpa_dejavu.alpa.ray_cluster import connected_cluster

    with local_cluster(devices=1, hosts=3):
        import alpa

        whole = connected_cluster()
        alpa.shutdown()
        names = [whole.hosts[0].name, whole.hosts[2].name]
        planned = plan_model(model, without(whole, [whole.hosts[1].name]), batch=BATCH, layers=2)
        assert {host for stage in planned.plan.stages for host in stage.hosts} == set(names)
        done = train(AlpaSession(step, state, batch, tmp_path), planned.plan, 2, every=EVERY)
    np.testing.assert_allclose(done.losses, undisturbed()[:2], rtol=1e-4)


@pytest.mark.ray
@pytest.mark.slow
def test_without_a_disk_training_goes_on_from_the_neighbours_copy_and_without_a_broken_device():
    from alpa_dejavu.alpa.ray_cluster import connected_cluster

    with local_cluster(devices=2, hosts=2):
        import alpa

        planned = plan_model(model, connected_cluster(), batch=BATCH, micro_batches=2, layers=2)
        alpa.shutdown()
        happened = []

        def sabotaged(number):
            if number in (3, 6) and number not in happened:
                happened.append(number)
                lose_device() if number == 3 else lose_host()
            return batch(number)

        session = AlpaSession(step, state, sabotaged, probe=device_answers)
        done = train(session, planned.plan, STEPS, every=None, copy_every=2, kept=Kept.of(planned))
    device, host = done.recoveries
    print(device, host)
    assert [name.rpartition("/")[0] + "/" for name in device.hosts] == [device.hosts[0][:-1]]
    assert (device.failed_step, device.resumed_step) == (3, 2)
    assert (host.failed_step, host.resumed_step) == (6, 6)
    assert host.hosts[0] not in done.plan.devices_of_hosts
    np.testing.assert_allclose(done.losses, undisturbed(), rtol=1e-4)
