"""Train steps traced at the size of a micro-batch, and what cannot be."""

import jax
import numpy as np
import pytest

from alpa_dejavu.layers import trace
from train_steps import STEPS, mean_square, plain, with_aux


@pytest.mark.parametrize("function", STEPS)
def test_micro_batches_cut_the_batch(function):
    traced = trace(function, batch=32, num_micro_batches=4)
    assert traced.micro_batch == 8
    assert {var.aval.shape for var in traced.data if var.aval.ndim == 2} == {(8, 8)}
    assert traced.num_parameters == 6 * 64
    assert traced.training


def test_the_data_of_an_inference_step_are_among_its_operands():
    weight, x = jax.ShapeDtypeStruct((4, 4), np.float32), jax.ShapeDtypeStruct((8, 4), np.float32)
    traced = trace(lambda: (lambda weight, x: jax.nn.relu(x @ weight) @ weight, (weight, x)))
    assert not traced.training
    assert traced.data == {var for var in traced.loss.invars if var.aval.shape == (8, 4)}


def test_tracing_leaves_jax_as_it_was():
    step, arguments = with_aux()
    before = jax.value_and_grad, jax.grad, jax._src.api._vjp
    first = step(*arguments)
    trace(lambda: (step, arguments))
    again = step(*arguments)
    assert (jax.value_and_grad, jax.grad, jax._src.api._vjp) == before
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))

    def broken(state, batch):
        raise KeyError("the user's own error")

    with pytest.raises(KeyError, match="the user's own error"):
        trace(lambda: (broken, arguments))
    assert jax._src.api._vjp is before[2]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: None, "returned NoneType None; it must return"),
        (lambda: (plain, [1, 2]), "arguments; it must return"),
        (lambda: (plain, ({}, {})), "has no arrays, but must be the batch"),
    ],
)
def test_a_function_that_returns_something_else(function, message):
    with pytest.raises(ValueError, match=message):
        trace(function)


def test_batches_that_cannot_be_cut():
    with pytest.raises(ValueError, match=r"a batch of 16 can't be cut into 3 micro-batches; .* 2, 4"):
        trace(plain, batch=16, num_micro_batches=3)
    with pytest.raises(ValueError, match="asked for a batch of 5"):
        trace(lambda batch_size: plain(16), batch=5)


def two_gradients(state, batch):
    jax.grad(mean_square)(state[0], batch)
    return jax.grad(mean_square)(state[0], batch)


def gradient_in_a_loop(state, batch):
    return jax.lax.fori_loop(0, 2, lambda _, c: jax.grad(mean_square)(c, batch), state[0])


def gradient_under_vmap(state, batch):
    return jax.vmap(lambda x, y: jax.grad(mean_square)(state[0], {"x": x, "y": y}))(batch["x"], batch["y"])


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (two_gradients, ValueError, "more than one gradient"),
        (gradient_in_a_loop, ValueError, "its gradient inside of a"),
        (gradient_under_vmap, NotImplementedError, "its gradient under jax.vmap"),
    ],
)
def test_gradients_that_cannot_be_planned(step, error, message):
    with pytest.raises(error, match=message):
        trace(lambda: (step, plain()[1]))
