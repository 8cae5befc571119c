"""Robust gradients in a train step: plain JAX against loops over replicas, under ShardParallel, and through files."""

import re

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu.training.robust import Suspects, robust_value_and_grad, rule
from alpa_dejavu.training.robust.attacks import SignFlip
from tampered_steps import layers, loss, make_step, one_after_another, trained

N, WIDTH = 4, 16
DRAW = np.random.default_rng(0)
PARAMS = layers(WIDTH, 3, DRAW)
BATCH = {name: DRAW.standard_normal((32, WIDTH)).astype(np.float32) for name in ("x", "y")}
SETTINGS = {"trimmed-mean": {"wrong": 1}, "suspicion": {"wrong": 1}, "centered-clipping": {}, "median": {}, "mean": {}}


def each_gradient(params, batch):
    parts = [{name: x[8 * n : 8 * n + 8] for name, x in batch.items()} for n in range(N)]
    made = [jax.grad(loss)(params, part) for part in parts]
    return jax.tree.map(lambda *x: jnp.stack(x), *made)


@pytest.mark.parametrize(("scope", "offsets", "joined"), [
    ("whole", False, False), ("whole", True, True), ("stage", False, True), ("stage", True, False), ("leaf", True, True)
])  # fmt: skip
def test_gradients_are_those_of_a_loop(scope, offsets, joined):
    known = rule("multi-krum", wrong=0)
    gradient = robust_value_and_grad(loss, known, N, scope, joined=joined)
    value, judged, _ = jax.jit(gradient)(PARAMS, BATCH, gradient.init(PARAMS, offsets=offsets))
    assert float(value) == pytest.approx(float(loss(PARAMS, BATCH)), rel=1e-6)
    rows = each_gradient(PARAMS, BATCH)
    groups = {"whole": [rows], "stage": list(rows.values()), "leaf": jax.tree.leaves(rows)}[scope]
    expected = [jax.jit(known.aggregate)(group).gradient for group in groups]
    for one, other in zip(*map(jax.tree.leaves, (judged.gradients, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    assert len(judged.suspicion) == len(groups)


@pytest.mark.parametrize(("made", "said"), [
    (lambda: robust_value_and_grad(loss, "krum", N).init(PARAMS), "replicas is 4, but must be at least 5"),
    (lambda: robust_value_and_grad(loss, "median", 5)(PARAMS, BATCH, None), "32 samples, but must divide by the 5"),
    (lambda: robust_value_and_grad(loss, "median", N, "part"), "scope is 'part'"),
    (lambda: robust_value_and_grad(loss, "median", N).score(PARAMS, PARAMS, BATCH), "must be a Zeno"),
    (lambda: Suspects(3).seen({"whole": np.ones(4)}), "must be \\(3,\\)"),
    (lambda: Suspects(3).seen({}, None, np.ones(4)), r"descent is of shape \(4,\), but must be \(3,\)"),
])  # fmt: skip
def test_bad_input_is_told_before_anything_runs(made, said):
    with pytest.raises(ValueError, match=said):
        made()


@pytest.mark.parametrize(("name", "micro_batches"), [("suspicion", 4), *((name, None) for name in SETTINGS)])
def test_shards_train_as_plain_jax(name, micro_batches):
    known = rule(name, **SETTINGS[name])
    plain = robust_value_and_grad(loss, known, N)
    batches = [{k: np.random.default_rng(n).standard_normal((32, WIDTH)).astype(np.float32) for k in BATCH}
               for n in range(4)]  # fmt: skip
    mine = one_after_another(batches, micro_batches or 1, N)
    expected = trained(jax.jit(make_step(plain)), PARAMS, plain.init(PARAMS), mine, N)
    sharded = robust_value_and_grad(loss, known, N, value_and_grad=alpa.value_and_grad)
    method = alpa.ShardParallel(devices=jax.local_devices()[:4], num_micro_batches=micro_batches)
    step = alpa.parallelize(make_step(sharded), method=method, donate_argnums=(), batch_argnums=(2,))
    found = trained(step, PARAMS, sharded.init(PARAMS), batches, N)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    if name == "trimmed-mean":  # each layer's gradients go to parts of all replicas, and the parts of the result back
        partitioned = step.get_last_executable().get_hlo_text()
        assert [len(re.findall(rf" {kind}\(", partitioned)) for kind in ("all-to-all", "collective-permute")] == [3, 0]
    for one, other in zip(*map(jax.tree.leaves, (found[2], expected[2])), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_suspects_are_named_and_proposed_to_be_left_out(caplog):
    draw, log = np.random.default_rng(0), Suspects(4, patience=3)

    def step(log, flipped, far=1.0):
        cosine = np.where(np.arange(4) == 1, -1 if flipped else 1, 1) * 0.5 + 0.1 * draw.standard_normal(4)
        distance = np.where(np.arange(4) == 2, far, 1) * np.exp(0.1 * draw.standard_normal(4))
        return log.seen({"first": np.ones(4), "second": distance}, {"first": cosine, "second": np.full(4, 0.5)})

    for flipped in [False] * 20 + [True] * 6:
        log = step(log, flipped)
    assert log.named == log.left_out == (1,)
    assert [record.getMessage() for record in caplog.records] == [
        "step 22: replica 1 is a suspect: it is against the gradient, most in first",
        "step 24: replica 1 has been a suspect for 3 steps: leave it out; `alpa-dejavu replan PLAN.json "
        "--without-replica 1` says what that costs",
    ]
    for _ in range(3):
        log = step(log, False, far=9.0)
    assert log.named == (2,)
    for _ in range(3):
        log = step(log, False, far=np.inf)
    assert log.named == log.left_out == (2,)


def test_suspects_that_are_right_are_named_as_rarely_as_was_asked():
    draw, names = np.random.default_rng(1), 0
    for _ in range(4):
        log = Suspects(4, steps_between_false_names=100)
        for _ in range(100):
            log = log.seen({"whole": np.exp(0.3 * draw.standard_normal(4))},
                           {"whole": 0.4 + 0.3 * draw.standard_normal(4)})  # fmt: skip
            names += len(log.named)
    assert names <= 8  # 4 are expected at most


def test_rules_per_stage_survive_faults_in_the_exchange_not_in_computing():
    # Three stages; in each another of seven replicas sends a wrong gradient: each stage has one wrong, all together 3.
    size = 7
    draw = np.random.default_rng(5)
    rows = {n: {"w": jnp.asarray(1 + 0.1 * draw.standard_normal((size, 50)), jnp.float32)} for n in "abc"}
    spoilt = {n: {"w": x["w"].at[number].set(-100.0)} for number, (n, x) in enumerate(rows.items())}
    by_scope = {}
    for scope in ("whole", "stage"):
        gradient = robust_value_and_grad(loss, rule("suspicion", wrong=1), size, scope)
        state = gradient.init(jax.tree.map(lambda x: x[0], rows))
        by_scope[scope] = gradient.judge(None, spoilt, state)[0]
    assert all(x["w"].min() > 0.5 for x in by_scope["stage"].gradients.values())
    assert [int(np.argmax(by_scope["stage"].suspicion[n])) for n in "abc"] == [0, 1, 2]
    assert np.count_nonzero(by_scope["whole"].weights["whole"]) == size - 1  # one left out, two wrong ones still in


@pytest.mark.parametrize("name", ["zeno", "zeno++"])
def test_fresh_samples_find_who_ascends(name):
    gradient = robust_value_and_grad(loss, rule(name, rate=0.5, penalty=0.0), N, "whole")
    state, wrong = gradient.init(PARAMS), jnp.arange(N) == 2
    tampered = jax.jit(lambda b: gradient(PARAMS, b, state, fresh=b, tamper=lambda g: SignFlip().send(g, wrong, 0)[0]))
    _, judged, _ = tampered(BATCH)
    assert judged.weights["whole"][2] == 0
    assert (np.delete(np.asarray(judged.weights["whole"]), 2) > 0).all()
    with pytest.raises(ValueError, match="fresh is None"):
        gradient(PARAMS, BATCH, state)
