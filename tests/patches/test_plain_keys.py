"""Jaxprs with typed keys become jaxprs without, and trees of arguments with them trees of plain arrays."""

import alpa  # noqa: F401  (registers the primitives)
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.primitive_def import pipeline_p
from jax.core import ShapedArray

from alpa_stock_jax._key_trees import with_words, words_of
from alpa_stock_jax._plain_keys import is_key, with_plain_keys

X = np.arange(6.0, dtype=np.float32)


def drawn(key, x):
    return x + jax.random.normal(key, x.shape)


def by_scan(key, x):
    return jax.lax.scan(lambda carry, k: (drawn(k, carry), None), x, jax.random.split(key, 3))


def by_loop(key, x):
    return jax.lax.fori_loop(0, 3, lambda n, pair: (jax.random.fold_in(pair[0], n), drawn(*pair)), (key, x))


def by_branch(key, x):
    return jax.lax.cond(x[1] > 0, drawn, lambda key, x: x, key, x)


def by_marker(key, x):
    keys = jax.random.split(key, (2, 3))
    marked, x = pipeline_p.bind(keys, x, name="stage", mark_type="start")
    return jnp.concatenate([marked, keys])[3, 1], jax.vmap(drawn, (0, None))(marked[1], x)


def by_remat(key, x):
    return jax.grad(lambda x: jax.checkpoint(lambda key, x: jnp.sum(drawn(key, x) ** 3))(key, x))(x)


@pytest.mark.parametrize("function", [drawn, by_scan, by_loop, by_branch, by_marker, by_remat])
@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey])
def test_a_jaxpr_without_typed_keys_draws_the_same(function, make_key):
    closed = jax.make_jaxpr(function)(make_key(1), X)
    plain = with_plain_keys(closed)
    atoms = [*plain.jaxpr.invars, *plain.jaxpr.outvars, *(v for e in plain.eqns for v in (*e.invars, *e.outvars))]
    assert not any(is_key(atom.aval) for atom in atoms)
    found = jax.jit(jax.core.jaxpr_as_fun(plain))(words_of(make_key(1)), X)
    expected = map(words_of, jax.tree_util.tree_leaves(jax.jit(function)(make_key(1), X)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_constants_are_words_too():
    key = jax.random.key(1)
    plain = with_plain_keys(jax.make_jaxpr(lambda x: drawn(key, x))(X))
    np.testing.assert_allclose(jax.core.jaxpr_as_fun(plain)(X)[0], drawn(key, X), rtol=1e-6)


def test_a_tree_is_put_together_with_its_keys():
    keys = jax.random.split(jax.random.key(1), 3)
    leaves, structure = jax.tree_util.tree_flatten(with_words({"keys": keys, "x": X}))
    assert [leaf.shape for leaf in leaves] == [(3, 2), (6,)]
    again = structure.unflatten(leaves)
    assert again["keys"].dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(again["keys"]), jax.random.key_data(keys))
    assert structure.unflatten(["here", None])["keys"] == "here"
    abstract = structure.unflatten([ShapedArray((3, 2), jnp.uint32), None])["keys"]
    assert (abstract.shape, abstract.dtype) == ((3,), keys.dtype)
    (words,) = jax.tree_util.tree_leaves(with_words(jax.ShapeDtypeStruct((3,), keys.dtype)))
    assert (words.shape, words.dtype) == ((3, 2), jnp.uint32)
