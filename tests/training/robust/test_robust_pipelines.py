"""Robust gradients in pipelines on a Ray cluster of four CPU devices: two stages, each judges its own layers."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu import DejavuStageOption
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.training.robust import Prepared, robust_value_and_grad, rule
from alpa_dejavu.training.robust.attacks import wrong_stage
from alpa_dejavu.training.robust.before import WorkerMomentum
from alpa_dejavu.training.robust.monitor import Monitor, WithSlots
from alpa_dejavu.training.robust.repeats import checked_step
from tampered_steps import layers, loss, make_step, one_after_another, trained

pytestmark = pytest.mark.ray

WIDTH, STEPS = 64, 4
PARAMS = layers(WIDTH, 4, np.random.default_rng(0))
BATCHES = [{name: np.random.default_rng(n).standard_normal((64, WIDTH)).astype(np.float32) for name in ("x", "y")}
           for n in range(STEPS)]  # fmt: skip


@pytest.fixture(scope="module")
def ray_cluster():
    with local_cluster(devices=4):
        yield


@pytest.fixture(autouse=True)
def _cluster(ray_cluster):
    alpa.init("ray")
    yield
    alpa.shutdown()


def two_stages():
    return alpa.ManualStageOption([[0], [1]], [(1, 2), (1, 2)], [(2, 1), (2, 1)], [{}, {}])


@pytest.mark.parametrize(("known", "replicas", "micro_batches", "option"), [
    (rule("suspicion"), 2, 1, two_stages),
    pytest.param(Prepared(rule("trimmed-mean"), (WorkerMomentum(0.5),)), 4, 4, two_stages, marks=pytest.mark.slow),
    pytest.param(rule("suspicion", wrong=1), 4, 4, DejavuStageOption, marks=pytest.mark.slow),
])  # fmt: skip
def test_stages_train_as_plain_jax(known, replicas, micro_batches, option):
    plain = robust_value_and_grad(loss, known, replicas)
    mine = one_after_another(BATCHES, micro_batches, replicas)
    expected = trained(jax.jit(make_step(plain)), PARAMS, plain.init(PARAMS), mine, replicas)
    staged = robust_value_and_grad(loss, known, replicas, value_and_grad=alpa.value_and_grad)
    method = alpa.PipeshardParallel(
        num_micro_batches=micro_batches, layer_option=alpa.AutoLayerOption(2), stage_option=option()
    )
    step = alpa.parallelize(make_step(staged), method=method, donate_argnums=(), batch_argnums=(2,))
    found = trained(step, PARAMS, staged.init(PARAMS, offsets=True), BATCHES, replicas)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)
    if option is two_stages:  # each stage has the parameters of its own layers
        meshes = [id(found[2][f"layer{n}"]["w"].device_mesh) for n in range(4)]
        assert meshes[0] == meshes[1] != meshes[2] == meshes[3]


@pytest.mark.slow
def test_zeno_scores_by_forward_passes_and_updates_each_stage():
    known = rule("zeno", wrong=1, rate=0.5, penalty=0.0)
    plain = robust_value_and_grad(loss, known, 4)
    staged = robust_value_and_grad(loss, known, 4, value_and_grad=alpa.value_and_grad)
    signs = jnp.array([1, -5, 1, 1.0])

    def stages(schedule):
        return alpa.PipeshardParallel(num_micro_batches=1, layer_option=alpa.AutoLayerOption(2),
                                      stage_option=two_stages(), pipeline_schedule=schedule)  # fmt: skip

    def gradients_of(params, state, batch):
        value, each = staged.of_each(params, batch, state)
        return value, jax.tree.map(lambda x: x * signs.reshape(-1, *(1,) * (x.ndim - 1)), each)

    def updated(params, gradients, descent):
        judged, _ = staged.judge(params, gradients, staged.init(params), descent=descent)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, judged.gradients)

    propose = alpa.parallelize(gradients_of, method=stages("1f1b"), donate_argnums=(), batch_argnums=(2,))
    _, each = propose(PARAMS, staged.init(PARAMS, offsets=True), BATCHES[0])
    score = alpa.parallelize(staged.score, method=stages("inference"), donate_argnums=(), batch_argnums=(2,))
    descent = np.asarray(score(PARAMS, each, BATCHES[1]))
    made = {}
    for pair in (("layer0", "layer1"), ("layer2", "layer3")):
        mesh = each[pair[0]]["w"].device_mesh
        assert each[pair[1]]["w"].device_mesh is mesh
        update = alpa.parallelize(updated, method=alpa.ShardParallel(devices=mesh), donate_argnums=(), batch_argnums=())
        made |= update(*({name: tree[name] for name in pair} for tree in (PARAMS, each)), descent)
    _, rows = plain.of_each(PARAMS, BATCHES[0], plain.init(PARAMS))
    rows = jax.tree.map(lambda x: x * signs.reshape(-1, *(1,) * (x.ndim - 1)), rows)
    judged, _ = plain.judge(PARAMS, rows, plain.init(PARAMS), fresh=BATCHES[1])
    assert int(np.argmin(descent)) == 1
    assert all(weights[1] == 0 for weights in judged.weights.values())
    for name, layer in made.items():
        for key, one in layer.items():
            expected = PARAMS[name][key] - 0.5 * np.asarray(judged.gradients[name][key])
            np.testing.assert_allclose(one, expected, rtol=1e-4, atol=1e-6)


def test_a_step_is_repeated_or_dropped_when_a_stage_computes_wrongly():
    monitor = Monitor(warm_up=4)

    def watched_loss(both, batch):
        made = batch["x"]
        for number, layer in enumerate(both.params.values()):
            made = jnp.tanh(made @ layer["w"] + layer["b"])
            if number == 1:
                made = Monitor.watched(wrong_stage(made, batch["factor"], 1.0), both.slots["half"])
        return jnp.mean((made - batch["y"]) ** 2)

    def trained_by(wrap, offsets, **by):
        gradient = robust_value_and_grad(watched_loss, "mean", 2, **by)

        @wrap
        def step(trained, watch, batch):
            params, state = trained
            value, each = gradient.of_each(WithSlots(params, watch.slots), batch, state)
            watch, found = monitor.seen(watch, each.slots)
            judged, state = gradient.judge(WithSlots(params, watch.slots), each, state)
            params = jax.tree.map(lambda p, g: p - 0.5 * g, params, judged.gradients.params)
            return (params, state), watch, found, value

        watch, history = monitor.init({"half": WIDTH}), []
        trained = PARAMS, gradient.init(WithSlots(PARAMS, watch.slots), offsets=offsets)
        for number in range(7):
            # The second replica's first stage: wrong in the first run of step 5, and in both runs of step 6.
            factors = iter({5: (9, 1), 6: (9, 9)}.get(number, (1,)))

            def run(trained, watch, batch, factors=factors):
                factor = np.repeat(np.float32([1, next(factors)]), 32)[:, None]
                return step(trained, watch, {**batch, "factor": factor})

            checked = checked_step(run, trained, watch, BATCHES[number % STEPS], order=["half"])
            stages = [one.stages(["half"]) for one in checked.wrong]
            history.append((float(np.asarray(checked.returned)), stages, checked.dropped))
            assert (checked.trained is trained) == checked.dropped
            trained, watch = checked.trained, checked.watch
        # A layer's parameters that lie on another stage's devices are fetched before any stage waits for another.
        swapped = {**trained[0], "layer3": trained[0]["layer0"]}
        *_, value = step((swapped, trained[1]), watch, {**BATCHES[0], "factor": np.ones((64, 1), np.float32)})
        history.append((float(np.asarray(value)), [], False))
        return history, trained[0]

    expected, right = trained_by(jax.jit, False)
    method = alpa.PipeshardParallel(
        num_micro_batches=1, layer_option=alpa.AutoLayerOption(2), stage_option=two_stages()
    )
    found, params = trained_by(alpa.parallelize(method=method, donate_argnums=(), batch_argnums=(2,)), True,
                               value_and_grad=alpa.value_and_grad)  # fmt: skip
    right_step, first = ([], False), [None, 0]
    assert [one[1:] for one in found] == [right_step] * 5 + [([first], False), ([first] * 2, True), right_step]
    assert [one[1:] for one in expected] == [one[1:] for one in found]
    np.testing.assert_allclose([one[0] for one in found], [one[0] for one in expected], rtol=1e-5)
    meshes = [id(params[f"layer{n}"]["w"].device_mesh) for n in range(4)]
    assert meshes[0] == meshes[1] != meshes[2] == meshes[3]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), params, right)
