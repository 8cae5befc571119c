"""jaxprs become HLO modules."""
import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from alpa_stock_jax._lost_primitives import named_call_p
from alpa_stock_jax.lowering import lower

X = np.ones((2, 3), np.float32)


def _text(jaxpr, donated):
    return lower("name", jaxpr, donated, "cpu").as_hlo_text()


def test_results_are_a_tuple_and_donations_are_aliases():
    text = _text(jax.make_jaxpr(lambda x, y: (x + 1, y.sum()))(X, X), [True, False])
    assert text.startswith("HloModule name")
    assert "->(f32[2,3]{1,0}, f32[])" in text
    assert "input_output_alias={ {0}: (0, {}, may-alias) }" in text


def test_constants_of_a_jaxpr_are_in_the_module():
    table = jnp.arange(6, dtype=jnp.float32).reshape(2, 3)
    text = _text(jax.make_jaxpr(lambda x: x + table)(X), [False])
    assert "constant({ { 0, 1, 2 }, { 3, 4, 5 } })" in " ".join(text.split())


def test_a_named_call_is_a_call():
    inner = jax.make_jaxpr(jnp.sin)(X).jaxpr
    outer = jax.make_jaxpr(jnp.cos)(X)
    eqn = outer.eqns[0].replace(primitive=named_call_p, params={"name": "layer", "call_jaxpr": inner})
    closed = core.ClosedJaxpr(outer.jaxpr.replace(eqns=[eqn]), ())
    assert "sine" in _text(closed, [False])
    np.testing.assert_allclose(core.jaxpr_as_fun(closed)(X)[0], np.sin(X), rtol=1e-6)


def test_checkpointed_and_custom_functions_are_lowered():
    def loss(x):
        return jax.nn.relu(jax.checkpoint(jnp.sin)(x)).sum()

    text = _text(jax.make_jaxpr(jax.grad(loss))(X), [False])
    assert "cosine" in text
