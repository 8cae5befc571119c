"""The monitor finds who computes a stage wrongly, and which; and it leaves values and training as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.training.robust import robust_value_and_grad
from alpa_dejavu.training.robust.attacks import wrong_stage
from alpa_dejavu.training.robust.monitor import Monitor
from alpa_dejavu.training.robust.repeats import checked_step

N, WIDTH, ROWS = 4, 16, 32
DRAW = np.random.default_rng(0)
PARAMS = [DRAW.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4 for _ in range(3)]
CROSSINGS = ("first", "second")


def loss(both, batch):
    (params, slots), made = both, batch["x"]
    for number, w in enumerate(params):
        made = jnp.tanh(made @ w)
        if number < 2:
            forward, backward = batch[f"stage{number}"].T
            made = wrong_stage(made, forward[:, None], backward[0])
            made = Monitor.watched(made, slots[CROSSINGS[number]])
    return jnp.mean((made - batch["y"]) ** 2)


def step_of(monitor, differentiate=jax.value_and_grad):
    gradient = robust_value_and_grad(loss, "mean", N, "whole", value_and_grad=differentiate)
    state = gradient.init(PARAMS)

    def step(params, watch, batch):
        value, (each, seen) = gradient.of_each((params, watch.slots), batch, state)
        watch, found = monitor.seen(watch, seen)
        judged, _ = gradient.judge(params, monitor.dropped(each, found), state)
        params = jax.tree.map(lambda p, g: p - 0.05 * g, params, judged.gradients)
        return params, watch, value, found

    return step


def batch_of(number, wrong=None):
    draw = np.random.default_rng(number)
    made = {name: draw.standard_normal((N * ROWS, WIDTH)).astype(np.float32) for name in "xy"}
    factors = {f"stage{n}": np.ones((N, 2), np.float32) for n in range(2)}
    if wrong is not None:
        stage, replica, factor = wrong
        factors[f"stage{stage}"][replica] = factor
    return {**made, **{name: np.repeat(x, ROWS, axis=0) for name, x in factors.items()}}


def trained(step, monitor, wrongs, steps=40):
    params, watch, history = PARAMS, monitor.init(dict.fromkeys(CROSSINGS, WIDTH)), []
    for number in range(steps):
        params, watch, _, found = step(params, watch, batch_of(number, wrongs.get(number)))
        history.append(jax.tree.map(np.asarray, found))
    return params, history


def test_a_wrong_stage_is_found_and_its_replica_dropped():
    monitor = Monitor()
    wrongs = {30: (0, 2, (3, 1)), 33: (1, 1, (0.4, 1)), 36: (1, 3, (1, 5)), 38: (0, 0, (np.nan, 1))}
    params, history = trained(jax.jit(step_of(monitor)), monitor, wrongs)
    found = [one.stages(CROSSINGS) for one in history]
    assert {n: stages for n, stages in enumerate(found) if stages != [None] * N} == {
        30: [None, None, 0, None],
        33: [None, 1, None, None],
        36: [None, None, None, 1],
        38: [0, None, None, None],
    }
    assert all(np.isfinite(w).all() for w in params)


@pytest.mark.parametrize(("wrongs", "dropped"), [(1, False), (2, True)])
def test_a_step_is_repeated_or_dropped_and_leaves_no_trace(wrongs, dropped, caplog):
    monitor = Monitor(warm_up=4)
    step, runs = jax.jit(step_of(monitor)), []

    def run(params, watch, batch):
        runs.append(len(runs))
        params, watch, value, found = step(params, watch, batch_of(8, (0, 2, (9, 1))) if len(runs) <= wrongs else batch)
        return params, watch, found, value

    before, watch = PARAMS, monitor.init(dict.fromkeys(CROSSINGS, WIDTH))
    for number in range(8):
        before, watch, *_ = step(before, watch, batch_of(number))
    expected = before if dropped else step(before, watch, batch_of(8))[0]
    made = checked_step(run, before, watch, batch_of(8), order=CROSSINGS)
    assert runs == [0, 1]
    assert made.dropped == dropped
    assert [one.stages(CROSSINGS) for one in made.wrong] == [[None, None, 0, None]] * wrongs
    assert caplog.messages[-1] == "stage 0 of replica 2 computed wrongly; the step is " + (
        "dropped" if dropped else "run again")  # fmt: skip
    assert int(made.watch.steps) == 9
    jax.tree.map(np.testing.assert_array_equal, made.trained, expected)


def test_watching_changes_no_value_and_quantiles_are_those_of_the_values():
    monitor = Monitor(decay=0.97)
    watch, draw = monitor.init({"only": 3}), np.random.default_rng(1)
    slope = jnp.array([1.0, 2.0, 3.0])
    differentiate = jax.jit(jax.value_and_grad(lambda slots, x: jnp.sum(Monitor.watched(x, slots["only"]) * slope)))
    see = jax.jit(monitor.seen)
    for _ in range(200):
        x = draw.standard_normal((64, 3)).astype(np.float32) * [1, 2, 5] + [0, 3, -9]
        value, seen = differentiate(watch.slots, x)
        assert float(value) == pytest.approx(float((x * slope).sum()), rel=1e-4)
        watch, _ = see(watch, {"only": seen["only"][None]})
    expected = np.array([[-1.28], [0], [1.28]]) * [1, 2, 5] + [0, 3, -9]
    np.testing.assert_allclose(watch.slots["only"][0, 2:5], expected, atol=1.2)
    np.testing.assert_allclose(watch.mean["only"][1, 0], slope, rtol=1e-4)  # the signal


@pytest.mark.parametrize(("made", "said"), [
    (lambda: Monitor(threshold=0), "threshold is 0"),
    (lambda: Monitor(quantiles=(0.5, 1.0)), "must be above 0 and below 1"),
    (lambda: Monitor().init({}), "must have a crossing"),
    (lambda: checked_step(None, PARAMS, None, None, repeats=-1), "repeats is -1"),
    (lambda: Monitor.watched(jnp.ones((2, 3)), jnp.ones((2, 6, 4))), "slot is for 4 features, but must be for 3"),
])  # fmt: skip
def test_bad_input_is_told(made, said):
    with pytest.raises(ValueError, match=said):
        made()
