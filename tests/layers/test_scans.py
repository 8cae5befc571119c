"""Scans over layers: a model whose blocks run in a scan is the same to a plan as one that has them in a Python loop."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers import cut_into_layers, trace
from alpa_dejavu.sharding import model_of_step

BLOCKS, WIDTH = 4, 8
OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def block(x, weights):
    return jnp.tanh(x @ weights["wide"]) @ weights["narrow"] + x


def in_a_loop(x, blocks):
    for weights in blocks:
        x = block(x, weights)
    return x


def in_a_scan(x, stacked, reverse=False):
    return jax.lax.scan(lambda x, weights: (block(x, weights), None), x, stacked, reverse=reverse)[0]


def model(blocks_of, stacked, trains=True):
    """A model function whose blocks are stacked in one array, or not."""
    shape = jax.ShapeDtypeStruct

    def function(batch_size):
        def loss(parameters, data):
            return (blocks_of(data @ parameters["first"], parameters["blocks"]) @ parameters["last"]).mean()

        def step(state, data):
            parameters, kept = state
            value, gradients = jax.value_and_grad(loss)(parameters, data)
            updates, kept = OPTIMIZER.update(gradients, kept, parameters)
            return (optax.apply_updates(parameters, updates), kept), value

        one = {"wide": shape((WIDTH, 4 * WIDTH), "float32"), "narrow": shape((4 * WIDTH, WIDTH), "float32")}
        blocks = jax.tree.map(lambda leaf: shape((BLOCKS, *leaf.shape), leaf.dtype), one) if stacked else [one] * BLOCKS
        parameters = {
            "first": shape((3, WIDTH), "float32"), "blocks": blocks, "last": shape((WIDTH, 1), "float32"),
        }  # fmt: skip
        state = (parameters, jax.eval_shape(OPTIMIZER.init, parameters))
        called = step if trains else lambda state, data: loss(state[0], data)
        return called, (state, shape((batch_size, 3), "float32"))

    return function


def figures(function, layers=4):
    made = model_of_step(trace(function, batch=8), layers)
    return (
        [(layer.forward.flop.sum(), layer.backward.flop.sum()) for layer in made.layers],
        {
            role: sum(tensor.num_bytes for tensor in made.tensors if tensor.role == role)
            for role in ("parameter", "gradient", "optimizer")
        },
    )


def test_a_scan_over_layers_has_the_layers_of_a_loop():
    flop, sizes = figures(model(in_a_loop, stacked=False))
    scanned_flop, scanned_sizes = figures(model(in_a_scan, stacked=True))
    np.testing.assert_array_equal(scanned_flop, flop)
    assert {role: scanned_sizes[role] for role in ("parameter", "gradient")} == {
        role: sizes[role] for role in ("parameter", "gradient")
    }
    assert scanned_sizes["optimizer"] == sizes["optimizer"]


@pytest.mark.parametrize("reverse", [False, True])
def test_an_unrolled_loss_computes_what_the_scan_does(reverse):
    function = model(lambda x, stacked: in_a_scan(x, stacked, reverse), stacked=True, trains=False)
    step, (state, data) = function(8)
    rng = np.random.default_rng(0)
    values = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), (state[0], data))
    traced = trace(function, batch=8)
    leaves = dict(zip(("blocks", "first", "last"), (values[0][k] for k in ("blocks", "first", "last")), strict=True))
    expected = step((values[0], state[1]), values[1])
    by_shape = {}
    for leaf in [*leaves["blocks"].values()]:
        by_shape.setdefault(leaf.shape[1:], []).extend(leaf)
    for leaf in (leaves["first"], leaves["last"], values[1]):
        by_shape.setdefault(leaf.shape, []).append(leaf)
    given = [by_shape[var.aval.shape].pop(0) for var in traced.loss.invars if var.aval.shape in by_shape]
    assert len(given) == len(traced.loss.invars)
    np.testing.assert_allclose(core.eval_jaxpr(traced.loss, (), *given)[0], expected, rtol=1e-5)


def test_a_scan_over_time_stays_whole():
    def function(batch_size):
        def step(weights, data):
            def loss(weights):
                first = jnp.zeros((batch_size, WIDTH))
                cell = lambda h, x: (jnp.tanh(h @ weights["own"] + x @ weights["enter"]), None)  # noqa: E731
                return jax.lax.scan(cell, first, data.swapaxes(0, 1))[0].mean()

            return jax.tree.map(jnp.subtract, weights, jax.grad(loss)(weights))

        weights = {"own": jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32"),
                   "enter": jax.ShapeDtypeStruct((3, WIDTH), "float32")}  # fmt: skip
        return step, (weights, jax.ShapeDtypeStruct((batch_size, 5, 3), "float32"))

    traced = trace(function, batch=2)
    assert [equation.primitive.name for equation in traced.loss.eqns].count("scan") == 1
    (note,) = traced.notes
    assert "a scan of 5 turns that shares weights" in note
    assert "isn't cut" in note


def test_a_step_without_a_gradient_and_data_of_a_fixed_size_are_told():
    def function(batch_size):
        data = {"x": jax.ShapeDtypeStruct((batch_size, 4), "float32"), "fixed": jax.ShapeDtypeStruct((5, 4), "float32")}
        return (lambda weight, data: (data["x"] @ weight).sum() + data["fixed"].sum()), (
            jax.ShapeDtypeStruct((4, 4), "float32"), data,
        )  # fmt: skip

    without, fixed = trace(function, batch=2).notes
    assert "takes no gradient" in without
    assert "jax.grad" in without
    assert "(5, 4)" in fixed


def test_functions_that_take_no_batch_size_or_ignore_it_are_told_what_to_write():
    whole = model(in_a_scan, stacked=True)
    with pytest.raises(ValueError, match=r"must take one argument, the batch size.*def model\(batch_size\)"):
        trace(lambda: whole(8), batch=8)
    with pytest.raises(ValueError, match=r"asked for a batch of 4.*called with the samples of a micro-batch"):
        trace(lambda batch_size: whole(8), batch=4)


def half(x, stacked):
    return in_a_scan(x.astype("bfloat16"), jax.tree.map(lambda leaf: leaf.astype("bfloat16"), stacked))


@pytest.mark.parametrize("wrapped", [jax.checkpoint(in_a_scan), jax.jit(in_a_scan), half], ids=["remat", "jit", "half"])
def test_a_scan_is_found_in_functions_and_behind_casts(wrapped):
    traced = trace(model(wrapped, stacked=True), batch=8)
    assert len(cut_into_layers(traced, BLOCKS).forward) == BLOCKS
    assert traced.num_parameters == 3 * WIDTH + BLOCKS * 8 * WIDTH**2 + WIDTH
    assert not any(equation.primitive.name == "scan" for equation in traced.loss.eqns)


def test_what_a_plan_of_it_says():
    (note,) = trace(model(in_a_scan, stacked=True), batch=8).notes
    assert "a scan of 4 turns" in note
    assert "Python loop" in note
    assert trace(model(in_a_loop, stacked=False), batch=8).notes == ()
