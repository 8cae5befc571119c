"""Remat in some layers: only those are computed again, and the result is the same."""

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel import layer_construction

from alpa_dejavu import DejavuLayerOption
from alpa_dejavu.layers.marks import mark_layer_end

WEIGHTS = [jax.random.normal(jax.random.key(n), (8, 8)) for n in range(4)]
X = jnp.linspace(0.0, 1.0, 16).reshape(2, 8)


def marked(weights):
    x = X
    for n, weight in enumerate(weights):
        if n:
            alpa.mark_pipeline_boundary()
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def plain(weights):
    x = X
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean(x**2)


def ended(weights):
    """With the marks of transformers by their sizes."""
    x = X
    for weight in weights:
        x = mark_layer_end(jnp.tanh(x @ weight))
    return jnp.mean(x**2)


def rematted(option, func):
    """For each layer of the transformed function, whether it is computed again."""
    jaxpr = jax.make_jaxpr(option.transform(func))(WEIGHTS)
    layers, inside = [], False
    for equation in jaxpr.jaxpr.eqns:
        if equation.primitive.name == "pipeline_marker":
            inside = equation.params["mark_type"] == "start"
            if inside:
                layers.append(False)
        elif inside:
            layers[-1] |= equation.primitive.name in ("checkpoint", "remat2", "remat")
    return layers


@pytest.mark.parametrize(
    ("layer_num", "func", "chosen"),
    [(None, marked, ()), (None, marked, (0,)), (None, marked, (0, 1, 2, 3)), (4, plain, (1, 2))],
)
def test_the_layers_that_are_named_are_computed_again(layer_num, func, chosen):
    option = DejavuLayerOption(layer_num, chosen)
    assert rematted(option, func) == [n in chosen for n in range(4)]
    expected = jax.grad(plain)(WEIGHTS)
    for one, other in zip(jax.grad(option.transform(func))(WEIGHTS), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("chosen", [(), (1, 4)])
def test_layers_end_where_a_model_marks_them(chosen):
    option = DejavuLayerOption(remat_layers=chosen)
    assert rematted(option, ended) == [n in chosen for n in range(5)], "the mean is a layer of its own"
    for one, other in zip(jax.grad(option.transform(ended))(WEIGHTS), jax.grad(plain)(WEIGHTS), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_alpa_is_left_as_it_was():
    original = layer_construction.remat_sliced_eqns
    with pytest.raises(ValueError, match=r"remat_layers is \[7\], but the step has 4 layers"):
        jax.make_jaxpr(DejavuLayerOption(None, (7,)).transform(marked))(WEIGHTS)
    assert layer_construction.remat_sliced_eqns is original
    assert rematted(alpa.ManualLayerOption(remat_layer=True), marked) == [True] * 4


@pytest.mark.parametrize(
    ("fields", "said"),
    [((0,), "layer_num is 0"), ((4, (4,)), r"\[4\], but the layers are 0\.\.3"), ((None, (-1,)), "from 0 on")],
)
def test_layers_that_there_are_not_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        DejavuLayerOption(*fields)


def test_another_alpa_is_refused(monkeypatch):
    monkeypatch.setattr(layer_construction, "remat_sliced_eqns", lambda jaxpr: jaxpr)
    with pytest.raises(RuntimeError, match="isn't the one of Alpa"):
        jax.make_jaxpr(DejavuLayerOption(None, (0,)).transform(marked))(WEIGHTS)
