"""Which parts matter, training for it, and outages: each against brute force or by hand."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_dejavu.training.resilience import cross_entropy, find_parts
from alpa_dejavu.training.resilience.critical import chosen_parts, harms
from alpa_dejavu.training.resilience.faults import Removed
from alpa_dejavu.training.resilience.hardening import Drill, hardened, weight_noise
from alpa_dejavu.training.resilience.outages import Outage, disturbed, stage_parts

DRAW = np.random.default_rng(3)
INPUTS = DRAW.standard_normal((60, 5)).astype(np.float32)
TARGETS = (INPUTS[:, 0] + INPUTS[:, 1] * INPUTS[:, 2] > 0).astype(np.int32)
DATA = INPUTS, TARGETS


def start(seed=0, width=7):
    draw = np.random.default_rng(seed)
    return {"hidden": draw.standard_normal((5, width)).astype(np.float32),
            "out": draw.standard_normal((width, 2)).astype(np.float32)}  # fmt: skip


def model(params, inputs):
    return jnp.tanh(inputs @ params["hidden"]) @ params["out"]


def loss_without(params, units):
    kept = params["hidden"] * ~np.isin(np.arange(params["hidden"].shape[1]), units)
    return float(cross_entropy(model({**params, "hidden": kept}, INPUTS), TARGETS))


@pytest.mark.parametrize("least", [False, True])
def test_the_exact_choice_is_that_of_brute_force(least):
    params = start()
    parts = find_parts(params, but="out")
    every = {units: loss_without(params, units) for units in itertools.combinations(range(7), 3)}
    best = (min if least else max)(every.values())
    found = chosen_parts(model, params, DATA, parts, 3, by="exact", least=least)
    assert every[tuple(sorted(found.units))] == pytest.approx(best, abs=1e-5)
    assert found.loss == pytest.approx(best, abs=1e-5)
    assert found.loss_before == pytest.approx(loss_without(params, ()), abs=1e-5)
    assert found.names == tuple(f"hidden[{unit}]" for unit in found.units)
    greedy = chosen_parts(model, params, DATA, parts, 3, least=least)
    taken = ()
    for unit in greedy.units:
        tried = {other: loss_without(params, (*taken, other)) for other in range(7) if other not in taken}
        assert tried[unit] == pytest.approx((min if least else max)(tried.values()), abs=1e-5)
        taken = (*taken, unit)


def test_scores_are_measured_harm_and_taylors_sums():
    params = start(1)
    parts = find_parts(params, but="out")
    tried = harms(model, params, DATA, parts)
    base = loss_without(params, ())
    np.testing.assert_allclose(tried, [loss_without(params, (unit,)) - base for unit in range(7)], atol=1e-5)
    # Of a quadratic loss Taylor's sum up to the curvature is exact.
    target = np.zeros((60, 2), np.float32)

    def square(outputs, targets):
        return jnp.mean((outputs - targets) ** 2)

    linear = {"out": params["out"]}
    hidden = np.tanh(INPUTS @ params["hidden"])

    def head(params, inputs):
        return inputs @ params["out"]

    exact = harms(head, linear, (hidden, target), "neurons", loss=square)
    curved = harms(head, linear, (hidden, target), "neurons", by="curvature", loss=square)
    sloped = harms(head, linear, (hidden, target), "neurons", by="gradient", loss=square)
    np.testing.assert_allclose(curved, exact, rtol=1e-3)
    gradient = jax.grad(lambda p: square(head(p, hidden), target))(linear)["out"]
    np.testing.assert_allclose(sloped, -np.sum(gradient * params["out"], axis=0), rtol=1e-4)


def test_averaged_weights_are_the_mean_of_the_last_ones_and_no_fault_is_plain_training():
    params, parts = start(), find_parts(start(), but="out")
    given = {"batch": 8, "seed": 1}
    each = [hardened(model, cross_entropy, params, DATA, optax.sgd(0.5), steps=n, **given) for n in (2, 3)]
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *each)
    found = hardened(model, cross_entropy, params, DATA, optax.sgd(0.5), steps=3, averaged=2 / 3, **given)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), found, mean)
    for drill in (Drill(Removed(), parts, 0.0), weight_noise(parts, 0.0)):
        same = hardened(model, cross_entropy, params, DATA, optax.sgd(0.5), steps=3, drills=[drill], **given)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), same, each[-1])


def residual(params, inputs):
    for block in params["blocks"]:
        inputs = inputs + jnp.tanh(inputs @ block)
    return inputs @ params["out"]


RESIDUAL = {"blocks": [DRAW.standard_normal((5, 5)).astype(np.float32) * 0.3 for _ in range(3)],
            "out": DRAW.standard_normal((5, 2)).astype(np.float32)}  # fmt: skip
STAGES = {"stage 0": ["blocks/0", "blocks/1"], "stage 1": ["blocks/2"]}


def run(outage=None, steps=30, **more):
    parts = stage_parts(RESIDUAL, STAGES)
    return disturbed(residual, cross_entropy, RESIDUAL, DATA, DATA, optax.sgd(0.1), parts, outage, steps=steps,
                     batch=12, looks=6, **more)  # fmt: skip


def test_a_stage_that_is_lost_all_the_time_is_as_if_it_werent_there():
    found = run(Outage(1, 0, 30))
    smaller = {"blocks": RESIDUAL["blocks"][:2], "out": RESIDUAL["out"]}
    parts = stage_parts(smaller, {"stage 0": ["out"]})
    alone = disturbed(residual, cross_entropy, smaller, DATA, DATA, optax.sgd(0.1), parts, steps=30, batch=12, looks=6)
    np.testing.assert_allclose(found.answered, alone.loss, rtol=1e-4)
    assert found.steps.tolist() == [0, 5, 10, 15, 20, 25, 30]


def test_a_lost_replica_takes_its_rows_with_it():
    rows = jax.random.randint(jax.random.fold_in(jax.random.PRNGKey(0), 0), (12,), 0, len(TARGETS))[:6]
    found = run(Outage(None, 0, 1, replica=1), steps=1, replicas=2)
    gradient = jax.grad(lambda p: cross_entropy(residual(p, INPUTS[rows]), TARGETS[rows]))(RESIDUAL)
    moved = jax.tree.map(lambda p, g: p - 0.1 * g, RESIDUAL, gradient)
    assert found.loss[-1] == pytest.approx(float(cross_entropy(residual(moved, INPUTS), TARGETS)), rel=1e-5)
    with pytest.raises(ValueError, match=r"replica is 0, but must be one of two or more"):
        run(Outage(None, 0, 1, replica=0))
    with pytest.raises(ValueError, match=r"unit is 2, but must be of 0..1"):
        run(Outage(2, 0, 1))
    with pytest.raises(ValueError, match=r"batch is 12, but must be a multiple of the 5 replicas"):
        run(replicas=5)


@pytest.mark.parametrize(("call", "said"), [
    (lambda: chosen_parts(model, start(), DATA, "neurons", 0), "k is 0, but must be of 1 to 9"),
    (lambda: chosen_parts(model, start(), DATA, "neurons", 2, by="greed"), "did you mean 'greedy'"),
    (lambda: chosen_parts(model, start(0, 200), DATA, "neurons", 5, by="exact"), "at most 50000 sets"),
    (lambda: harms(model, start(), DATA, by="luck"), "by is 'luck', but must be one of gradient"),
    (lambda: harms(model, start(), DATA, "activations", by="gradient"), "must be 'tried' for activations' features"),
    (lambda: Drill(Removed(), find_parts(start()), 1.5), r"shares has 1\.5, but must be of 0 to 1"),
    (lambda: stage_parts(RESIDUAL, {"one": ["block/0"]}), "but must be of the paths blocks/0"),
])  # fmt: skip
def test_wrong_choices_are_told(call, said):
    with pytest.raises(ValueError, match=said):
        call()
