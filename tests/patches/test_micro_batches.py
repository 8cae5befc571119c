"""Over micro-batches a step gives what it gives with the whole batch, or says what it can't."""

import logging

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import tree_leaves

from micro_batches import accumulated

RNG = np.random.default_rng(0)
PARAMS = [(RNG.normal(size=(8, 8)) / 3).astype(np.float32) for _ in range(2)]
TEACHER = (RNG.normal(size=(8, 8)) / 3).astype(np.float32)
BATCH = {
    "x": RNG.normal(size=(12, 8)).astype(np.float32),
    "y": RNG.normal(size=(12, 8)).astype(np.float32),
    "mask": np.array([1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 1, 1], np.float32),
    "label": RNG.integers(0, 8, 12).astype(np.int32),
}
HALVES = [{name: array[6 * n : 6 * n + 6] for name, array in BATCH.items()} for n in range(2)]


def _net(params, x):
    for weight in params:
        x = jnp.tanh(x @ weight)
    return x


def _errors(p, b):
    return ((_net(p, b["x"]) - b["y"]) ** 2).mean(-1)


def _sequence(p, b):
    x = b["x"].reshape(-1, 2, 4)
    mixed = jax.nn.softmax(jnp.einsum("bsd,btd->bst", x, x), -1) @ x
    return jnp.mean((mixed.reshape(-1, 8) @ p[0]) ** 2) + jnp.mean(mixed.transpose(1, 0, 2).reshape(-1, 4) ** 2)


def _scanned(p, b):
    last, means = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), x.mean()), b["x"], jnp.stack(p))
    return last.mean() + means.sum()


def _convolved(p, b):
    image, kernel = b["x"].reshape(-1, 1, 8, 1).repeat(4, 1), p[0].reshape(2, 2, 1, 16)
    numbers = ("NHWC", "HWIO", "NHWC")
    return jnp.mean(jax.lax.conv_general_dilated(image, kernel, (1, 1), "SAME", dimension_numbers=numbers) ** 2)


def _standardised(p, b):
    x = (b["x"] - b["x"].mean(0)) / b["x"].std(0)
    return jnp.mean((x @ p[0] - b["y"]) ** 2)


# The loss, and what else it gives.
KNOWN = {
    "sum": lambda p, b: (_errors(p, b).sum(), _errors(p, b).max()),
    "sum and regulariser": lambda p, b: (_errors(p, b).sum() + 0.1 * sum((w**2).sum() for w in p), _errors(p, b).min()),
    "mean of the unmasked": lambda p, b: (
        (_errors(p, b) * b["mask"]).sum() / jnp.maximum(b["mask"].sum(), 1),
        {"n": b["mask"].sum(), "m": 2 * b["mask"].sum()},
    ),
    "mean where": lambda p, b: (jnp.mean(_errors(p, b), where=b["mask"] > 0), 0.0),
    "weights of the batch": lambda p, b: ((_errors(p, b) * (b["mask"] / b["mask"].sum())).sum(), 0.0),
    "cumulative weights": lambda p, b: ((_errors(p, b) * jnp.cumsum(b["mask"])).mean(), 0.0),
    "place in the batch": lambda p, b: ((_errors(p, b) * jnp.arange(len(b["x"]))).mean(), 0.0),
    "whole numbers": lambda p, b: (
        _errors(p, b).sum(), ((_errors(p, b) < 1).sum(), jnp.int32(4), jnp.arange(3), jnp.int32(len(b["x"])))
    ),
    "booleans": lambda p, b: (
        _errors(p, b).mean(), ((_errors(p, b) < 0.3).any(), (_errors(p, b) < 9).all(), jnp.bool_(1))
    ),
    "values of samples": lambda p, b: (
        _errors(p, b).mean(), (_errors(p, b), _errors(p, b) < 1, _net(p, b["x"]).argmax(-1))
    ),
    "values of samples behind others": lambda p, b: (_errors(p, b).mean(), _net(p, b["x"]).T),
    "labels by place": lambda p, b: (
        -jax.nn.log_softmax(_net(p, b["x"]))[jnp.arange(len(b["x"])), b["label"]].sum(), 0.0
    ),
    "labels along": lambda p, b: (
        -jnp.take_along_axis(jax.nn.log_softmax(_net(p, b["x"])), b["label"][:, None], -1).sum(),
        (_net(p, b["x"]).argmax(-1) == b["label"]).mean(),
    ),
    "a table": lambda p, b: ((p[0][b["label"]] * b["x"]).sum(), jax.nn.one_hot(b["label"], 8).sum(0)),
    "terms of several kinds": lambda p, b: (
        _errors(p, b).sum() / 12 + 2 * _errors(p, b).mean() + _errors(p, b).sum(),
        jnp.stack([_errors(p, b).sum(), _errors(p, b).mean(), 3.0]),
    ),
    "sequences": lambda p, b: (_sequence(p, b) * 2, _sequence(p, b)),
    "scan": lambda p, b: (_scanned(p, b), _errors(p, b)),
    "remat": lambda p, b: (jax.checkpoint(_errors)(p, b).sum(), 0.0),
    "vmap": lambda p, b: (jax.vmap(lambda x, y: ((_net(p, x) - y) ** 2).sum())(b["x"], b["y"]).sum(), 0.0),
    "gradients of samples": lambda p, b: (
        jax.vmap(jax.grad(lambda x, y: ((_net(p, x) - y) ** 2).sum()))(b["x"], b["y"]).var(-1).sum(), 0.0
    ),
    "branches": lambda p, b: (
        jax.lax.cond(b["mask"].sum() > 3, lambda e: e.sum(), lambda e: 2 * e.sum(), _errors(p, b)), 0.0
    ),
    "convolution": lambda p, b: (_convolved(p, b), _errors(p, b)),
    "pooling": lambda p, b: (
        jax.lax.reduce_window(_net(p, b["x"]), 0.0, jax.lax.add, (1, 2), (1, 2), "VALID").sum(),
        jax.lax.reduce_window(_errors(p, b)[:, None] * p[0][0], -jnp.inf, jax.lax.max, (1, 3), (1, 1), "SAME").mean(),
    ),
    "counts of classes": lambda p, b: (
        _errors(p, b).mean(),
        (jnp.bincount(b["label"], length=8), jnp.zeros((8, 8)).at[b["label"]].add(_net(p, b["x"]))),
    ),
    "values at places": lambda p, b: (
        (_net(p, b["x"]).at[:, 2].set(b["y"][:, 1]) * b["y"]).sum(),
        _net(p, b["x"]).at[jnp.arange(len(b["x"])), b["label"]].set(0.5),
    ),
    "bits": lambda p, b: (_errors(p, b).mean(), jax.lax.bitcast_convert_type(_errors(p, b), jnp.int32)),
    "statistics of the batch alone": lambda p, b: (_standardised(p, b), 0.0),
    "top k": lambda p, b: (jax.lax.top_k(_net(p, b["x"]), 3)[0].sum(), jnp.median(_net(p, b["x"]), -1)),
    "the batch's size": lambda p, b: (_errors(p, b).sum() / len(b["x"]) ** 0.5, 0.0),
}  # fmt: skip

# A loss, and a word of why it isn't known.
UNKNOWN = {
    "a ratio": (lambda p, b: _errors(p, b).sum() / (_net(p, b["x"]) ** 2).sum(), "divides by a sum over the batch"),
    "contrastive": (
        lambda p, b: -jax.nn.log_softmax(_net(p, b["x"]) @ _net(p, b["x"]).T).diagonal().mean(), "contrastive loss",
    ),
    "batch norm": (
        lambda p, b: jnp.mean((_net(p, b["x"]) - _net(p, b["x"]).mean(0)) ** 2), "batch normalisation",
    ),
    "a root": (lambda p, b: jnp.sqrt(_errors(p, b).mean()), "sqrt"),
    "order in the batch": (lambda p, b: jnp.sort(_errors(p, b))[:3].mean(), "goes along the batch"),
    "reversed": (lambda p, b: (_errors(p, b)[::-1] * b["mask"]).mean(), "moves them"),
    "the worst": (lambda p, b: _errors(p, b).max(), "max over the batch"),
    "a window over samples": (
        lambda p, b: jax.lax.reduce_window(_errors(p, b), 0.0, jax.lax.add, (2,), (1,), "SAME").mean(),
        "goes along the batch",
    ),
    "load of experts": (lambda p, b: (jax.nn.softmax(_net(p, b["x"])).mean(0) ** 2).sum(), "isn't linear"),
}  # fmt: skip


def _make(loss_of):
    def made(value_and_grad):
        def step(p, b):
            (value, aux), g = value_and_grad(lambda p: loss_of(p, b), has_aux=True)(p)
            return [w - 0.1 * d for w, d in zip(p, g, strict=True)], (value, aux)

        return step

    return made


def _assert_equal(actual, expected):
    for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        assert jnp.asarray(a).dtype == jnp.asarray(e).dtype
        assert np.shape(a) == np.shape(e)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(e, np.float64), rtol=3e-5, atol=1e-6)


@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("name", KNOWN)
def test_what_is_known_is_the_batchs_own(name, number, caplog):
    make = _make(KNOWN[name])
    _assert_equal(accumulated(make, (PARAMS, BATCH), 1, number), jax.jit(make(jax.value_and_grad))(PARAMS, BATCH))
    assert not caplog.records


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_said_once(name, caplog):
    loss, reason = UNKNOWN[name]
    make = _make(lambda p, b: (loss(p, b), loss(p, b)))
    with caplog.at_level(logging.WARNING):
        given = accumulated(make, (PARAMS, BATCH), 1, 2)
    (message,) = [record.getMessage() for record in caplog.records]
    assert reason in message
    assert "test_micro_batches.py" in message
    assert 'accumulate="mean"' in message
    np.testing.assert_allclose(given[1][0], sum(loss(PARAMS, half) for half in HALVES) / 2, rtol=1e-6)


@pytest.mark.parametrize(
    ("aux", "reason"),
    [
        (lambda p, b: jnp.argmax(_errors(p, b)), "can't be put together"),
        (lambda p, b: jnp.sort(_errors(p, b)), "goes along the batch"),
        (lambda p, b: _errors(p, b).mean() > 1, "isn't linear"),
        (lambda p, b: (_errors(p, b) < 1).sum() // 2, "isn't linear"),
    ],
)
def test_what_is_not_known_and_has_no_mean_is_refused(aux, reason):
    make = _make(lambda p, b: (_errors(p, b).mean(), {"found": aux(p, b)}))
    with pytest.raises(ValueError, match=rf"the value\['found'\] beside the loss.*{reason}.*train with one"):
        accumulated(make, (PARAMS, BATCH), 1, 2)


def test_a_step_that_looks_at_the_size_of_the_batch_is_refused():
    make = _make(lambda p, b: (_errors(p, b).mean() if len(b["x"]) > 6 else _errors(p, b).max(), 0.0))
    with pytest.raises(ValueError, match="other operations with 6 samples than with 12"):
        accumulated(make, (PARAMS, BATCH), 1, 2)


def test_a_gradient_inside_of_another_operation_is_refused():
    def make(value_and_grad):
        def step(p, b):
            gradient = lambda p: value_and_grad(lambda p: _errors(p, b).mean())(p)[1]  # noqa: E731
            return jax.lax.cond(p[0].sum() > 0, gradient, lambda p: p, p)

        return step

    with pytest.raises(ValueError, match=r"inside of cond .*; call alpa.grad outside"):
        accumulated(make, (PARAMS, BATCH), 1, 2)


def test_a_loop_over_samples_is_refused():
    make = _make(lambda p, b: (jax.lax.map(lambda x: (_net(p, x) ** 2).sum(), b["x"]).sum(), 0.0))
    with pytest.raises(ValueError, match=r"loops over its samples \(jax.vmap is none\)"):
        accumulated(make, (PARAMS, BATCH), 1, 2)


def test_a_gradient_by_the_batch_is_refused():
    def make(value_and_grad):
        return lambda p, b: value_and_grad(lambda x: _errors(p, {**b, "x": x}).mean())(b["x"])

    with pytest.raises(ValueError, match="depends on the batch"):
        accumulated(make, (PARAMS, BATCH), 1, 2)


def _outside(kind):
    def made(value_and_grad):
        def step(p, teacher, b):
            used = b["mask"].sum()
            target = jnp.tanh(b["x"] @ teacher) if kind == "teacher" else b["y"]

            def loss(p):
                return (((_net(p, b["x"]) - target) ** 2).mean(-1) * b["mask"]).sum() / used

            value, g = value_and_grad(loss)(p)
            new = [w - 0.1 * d / used for w, d in zip(p, g, strict=True)]
            metrics = {"logits": _net(new, b["x"]), "right": (_net(new, b["x"]).argmax(-1) == b["label"]).mean()}
            return new, (value, used, metrics, b)

        return step

    return made


@pytest.mark.parametrize("kind", ["teacher", "labels"])
@pytest.mark.parametrize("number", [2, 4])
def test_the_update_sees_the_whole_batch(kind, number):
    arguments = (PARAMS, TEACHER, BATCH)
    expected = jax.jit(_outside(kind)(jax.value_and_grad))(*arguments)
    _assert_equal(accumulated(_outside(kind), arguments, 2, number), expected)


def test_a_plain_mean_is_left_to_alpa():
    make = _make(lambda p, b: (_errors(p, b).mean(), (_net(p, b["x"]).argmax(-1) == b["label"]).sum()))
    without = {key: value for key, value in BATCH.items() if key != "mask"}
    assert accumulated(make, (PARAMS, without), 1, 3) is None


@pytest.mark.parametrize(
    ("name", "number"),
    [("sum", 1), ("booleans", 3), ("values of samples", 2), ("whole numbers", 3), ("mean of the unmasked", 2)],
)
def test_on_a_mesh(name, number):
    """Arrays that the loss doesn't need stand beside it, and numbers of 3 elements on 2 devices."""
    make = _make(KNOWN[name])
    method = alpa.ShardParallel(devices=jax.local_devices()[:2], num_micro_batches=number)
    step = alpa.parallelize(make(alpa.value_and_grad), method=method, donate_argnums=(), batch_argnums=(1,))
    _assert_equal(step(PARAMS, BATCH), jax.jit(make(jax.value_and_grad))(PARAMS, BATCH))


@pytest.mark.parametrize("number", [1, 2])
def test_results_on_a_mesh_may_be_constants(number):
    table = np.arange(3, dtype=np.float32)

    def make(value_and_grad):
        def step(p, b):
            value, g = value_and_grad(lambda p: _errors(p, b).mean())(p)
            return g, {"value": value, "number": 3, "flag": True, "table": table, "weights": p[0]}

        return step

    method = alpa.ShardParallel(devices=jax.local_devices()[:2], num_micro_batches=number)
    step = alpa.parallelize(make(alpa.value_and_grad), method=method, donate_argnums=(), batch_argnums=(1,))
    _assert_equal(step(PARAMS, BATCH), jax.jit(make(jax.value_and_grad))(PARAMS, BATCH))


def test_the_update_on_a_mesh_sees_the_whole_batch():
    arguments = (PARAMS, TEACHER, BATCH)
    method = alpa.ShardParallel(devices=jax.local_devices()[:2], num_micro_batches=2)
    make = _outside("teacher")
    step = alpa.parallelize(make(alpa.value_and_grad), method=method, donate_argnums=(), batch_argnums=(2,))
    _assert_equal(step(*arguments), jax.jit(make(jax.value_and_grad))(*arguments))
    placements = step.get_last_executable().get_input_placement_specs()
    assert len(placements) == len(arguments)


def test_a_batch_that_cannot_be_cut_is_refused():
    method = alpa.ShardParallel(devices=jax.local_devices()[:2], num_micro_batches=5)
    step = alpa.parallelize(_make(KNOWN["sum"])(alpa.value_and_grad), method=method, batch_argnums=(1,))
    with pytest.raises(ValueError, match="num_micro_batches is 5, which doesn't divide the batch of"):
        step(PARAMS, BATCH)


def test_values_of_samples_are_known_where_the_loss_is_not():
    """The variance has a NaN in its jaxpr, which is the same for each micro-batch."""
    make = _make(lambda p, b: (UNKNOWN["a root"][0](p, b), (b["x"] @ p[0]).var(-1, keepdims=True)))
    given = accumulated(make, (PARAMS, BATCH), 1, 2)
    np.testing.assert_allclose(given[1][1], (BATCH["x"] @ PARAMS[0]).var(-1, keepdims=True), rtol=1e-5)


def test_a_user_who_knows_better_is_believed(caplog):
    loss, _ = UNKNOWN["the worst"]
    make = _make(lambda p, b: (loss(p, b), 0.0))
    added, averaged = (accumulated(make, (PARAMS, BATCH), 1, 2, accumulate=how) for how in ("sum", "mean"))
    assert not caplog.records
    total = sum(loss(PARAMS, half) for half in HALVES)
    np.testing.assert_allclose([added[1][0], averaged[1][0]], [total, total / 2], rtol=1e-6)
