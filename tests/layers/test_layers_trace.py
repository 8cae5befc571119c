"""Train steps traced at the size of a micro-batch, model functions by name, and what cannot be."""

from __future__ import annotations

import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_dejavu._util.jax_api import TRIED
from alpa_dejavu.layers import resolve, trace
from train_steps import STEPS, mean_square, plain, with_aux


@pytest.mark.parametrize("function", STEPS)
def test_micro_batches_cut_the_batch(function):
    traced = trace(function, batch=32, num_micro_batches=4)
    assert traced.micro_batch == 8
    assert {var.aval.shape for var in traced.data if var.aval.ndim == 2} == {(8, 8)}
    assert traced.num_parameters == 6 * 64
    assert traced.training


def test_tracing_leaves_jax_as_it_was():
    step, arguments = with_aux()
    before = jax.value_and_grad, jax.grad, jax.vjp, vars(jax._src.api).get("_vjp"), jax._src.api.vjp
    first = step(*arguments)
    trace(lambda: (step, arguments))
    again = step(*arguments)
    assert (jax.value_and_grad, jax.grad, jax.vjp, vars(jax._src.api).get("_vjp"), jax._src.api.vjp) == before
    assert jax.tree.all(jax.tree.map(np.array_equal, first, again))

    def broken(state, batch):
        raise KeyError("the user's own error")

    with pytest.raises(KeyError, match="the user's own error"):
        trace(lambda: (broken, arguments))
    assert (jax.vjp, vars(jax._src.api).get("_vjp")) == before[2:4]


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


def test_functions_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_own_model.py").write_text(
        textwrap.dedent("""
        def train(batch_size):
            raise LookupError(f"no data for {batch_size}")

        not_a_function = 3
        """)
    )
    (tmp_path / "broken_model.py").write_text("import a_package_that_nobody_has")
    path = list(sys.path)
    assert callable(resolve("my_own_model:train"))
    with pytest.raises(LookupError, match="no data for 8"):
        trace("my_own_model:train", batch=8)
    with pytest.raises(ValueError, match="no function 'trian'; did you mean 'train'"):
        resolve("my_own_model:trian")
    with pytest.raises(TypeError, match="is 3, but must be a function that takes a batch size"):
        resolve("my_own_model:not_a_function")
    with pytest.raises(ValueError, match="no module 'my_one_model'"):
        resolve("my_one_model:train")
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        resolve("broken_model:train")
    with pytest.raises(TypeError, match="the model is 3"):
        resolve(3)
    assert sys.path == path


@pytest.mark.parametrize(
    ("given", "remedy"),
    [("own.py:fn", "write own:fn"), ("sub/own.py:fn", "`cd sub`, and write own:fn"),
     ("gone.py:fn", r"there is no file 'gone.py'.*write gone:fn")],
)  # fmt: skip
def test_a_file_in_place_of_a_module_is_told_what_to_write(given, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for path in ("own.py", "sub/own.py"):
        (tmp_path / path).write_text("def fn(batch_size): ...")
    with pytest.raises(ValueError, match=f"must be 'module:function'.*{remedy}"):
        resolve(given)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [("net", "write net:train or net:other$"), ("net.py", "write net:train or net:other$"),
     ("sub/net", "`cd sub`, and write net:train or"), ("broken", "write broken:function$")],
)  # fmt: skip
def test_a_file_without_its_function_is_told_which_it_has(given, remedy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for path in ("net.py", "sub/net.py"):
        (tmp_path / path).write_text("def train(batch_size): ...\ndef _own(): ...\ndef other(batch_size): ...\n")
    (tmp_path / "broken.py").write_text("def train(")
    with pytest.raises(ValueError, match=f"model is '{given}', but must be 'module:function'.*{remedy}"):
        resolve(given)
    with pytest.raises(ValueError, match="there is no model named"):
        resolve("n" * 5000)


def test_the_data_of_an_inference_step_are_among_its_operands():
    weight, x = jax.ShapeDtypeStruct((4, 4), np.float32), jax.ShapeDtypeStruct((8, 4), np.float32)
    traced = trace(lambda: (lambda weight, x: jax.nn.relu(x @ weight) @ weight, (weight, x)))
    assert not traced.training
    assert traced.data == {var for var in traced.loss.invars if var.aval.shape == (8, 4)}


def test_a_jax_that_takes_gradients_in_another_way_is_told(monkeypatch):
    name = "_vjp" if "_vjp" in vars(jax._src.api) else "vjp"
    monkeypatch.setattr(jax._src.api, name, lambda function, *operands: None)
    with pytest.raises(RuntimeError, match="takes gradients in a way that isn't known"):
        trace(lambda: with_aux())


@pytest.mark.parametrize("inline", [True, False])
def test_functions_that_ask_to_be_inlined_are(inline):
    """Until some version jax did so when it traced; cuts of the loss go between the equations of such a function."""
    block = jax.jit(lambda weight, x: jnp.tanh(x @ weight), inline=inline)

    def step(weights, x):
        return jax.grad(lambda weights: block(weights[1], block(weights[0], x)).sum())(weights)

    arguments = [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2, jax.ShapeDtypeStruct((4, 8), jnp.float32)
    names = [equation.primitive.name for equation in trace(lambda: (step, arguments)).loss.eqns]
    assert names.count("dot_general") == (2 if inline else 0)


def test_a_jax_that_was_never_tried_is_noted(monkeypatch):
    noted = "jax 0.1.2 was never tried"
    assert not [note for note in trace(plain).notes if "never tried" in note]
    monkeypatch.setattr(jax, "__version__", "0.1.2")
    (note,) = [note for note in trace(plain).notes if noted in note]
    assert all(version in note for version in TRIED)
