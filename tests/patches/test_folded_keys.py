"""Keys: micro-batch m draws as a loss does whose keys are folded with m, and typed keys become plain ones."""

import alpa  # noqa: F401  (registers the primitives)
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.primitive_def import pipeline_p
from jax.core import ShapedArray

from alpa_stock_jax._key_trees import with_words, words_of
from alpa_stock_jax._plain_keys import is_key, with_plain_keys
from micro_batches import accumulated

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
W = np.eye(8, dtype=np.float32)
NUMBER = 2
KINDS = {"raw": jax.random.PRNGKey, "typed": jax.random.key}


def dropped(key, x):
    return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), 2 * x, 0)


def used(w, batch, key):
    return jnp.sum((dropped(key, batch["x"]) @ w) ** 2)


def twice(w, batch, key):
    return jnp.sum(dropped(key, batch["x"] @ w) * jax.random.normal(key, batch["x"].shape))


def split(w, batch, key):
    x = batch["x"]
    for n, layer in enumerate(jax.random.split(key, 3)):
        x = dropped(jax.random.fold_in(layer, n), x @ w)
    return jnp.sum(x**2)


def remat(w, batch, key):
    x = jax.checkpoint(lambda w, x, key: dropped(key, jnp.tanh(x @ w)))(w, batch["x"], key)
    return jnp.sum(jax.checkpoint(lambda w, x: dropped(jax.random.fold_in(key, 1), x @ w))(w, x) ** 2)


def branch(w, batch, key):
    return jnp.sum(jax.lax.cond(batch["x"].sum() > -1e9, dropped, lambda key, x: x, key, batch["x"]) @ w)


def for_each(w, batch, key):
    return jnp.sum(jax.vmap(dropped)(jax.random.split(key, len(batch["x"])), batch["x"]) @ w)


@pytest.mark.parametrize("loss", [used, twice, split, remat, branch, for_each])
@pytest.mark.parametrize(("kind", "as_argument"), [("raw", False), ("typed", True)])
def test_a_key_that_enters_the_loss_is_folded_once(loss, kind, as_argument):
    def make(value_and_grad):
        def step(w, batch, key):
            if as_argument:
                return value_and_grad(loss)(w, batch, key)
            return value_and_grad(lambda w: loss(w, batch, key))(w)

        return step

    key = KINDS[kind](1)
    assert_like_folded(make, {"x": X}, key, lambda batch, n: (loss, batch, jax.random.fold_in(key, n)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_the_loss_makes_is_folded_once(kind):
    def make(value_and_grad):
        def step(w, batch, key):
            inside = jax.checkpoint(lambda w: used(w, batch, KINDS[kind](3)))
            return value_and_grad(lambda w: inside(w))(w)

        return step

    def reference(batch, n):
        return used, batch, jax.random.fold_in(KINDS[kind](3), n)

    assert_like_folded(make, {"x": X}, KINDS[kind](1), reference)


def test_what_is_drawn_before_the_loss_for_each_sample_is_folded_too():
    def make(value_and_grad):
        def step(w, batch, key):
            noisy = dropped(key, batch["x"])
            return value_and_grad(lambda w: jnp.sum((noisy @ w) ** 2))(w)

        return step

    key = jax.random.key(1)
    assert_like_folded(make, {"x": X}, key, lambda batch, n: (used, batch, jax.random.fold_in(key, n)))


@pytest.mark.parametrize(("kind", "as_argument"), [("raw", False), ("typed", True)])
def test_a_key_of_the_batch_is_not_folded(kind, as_argument):
    def loss(w, batch, key):
        keys = jax.vmap(lambda key: jax.random.fold_in(key, 1))(batch["key"])
        return jnp.sum(jax.vmap(dropped)(keys, batch["x"]) @ w)

    def make(value_and_grad):
        def step(w, batch, key):
            batch = {**batch, "key": batch["key"]}
            if as_argument:
                return value_and_grad(loss)(w, batch, key)
            return value_and_grad(lambda w: loss(w, batch, key))(w)

        return step

    given = {"x": X, "key": jax.random.split(KINDS[kind](9), 4)}
    assert_like_folded(make, given, KINDS[kind](1), lambda batch, n: (loss, batch, None))


def test_keys_outside_of_the_loss_stay_as_they_are():
    def make(value_and_grad):
        def step(w, batch, key):
            new, dropout = jax.random.split(key)
            value, grads = value_and_grad(used)(w, batch, dropout)
            return value, grads + jax.random.normal(new, w.shape)

        return step

    key = jax.random.key(1)
    new, dropout = jax.random.split(key)
    value, grads = accumulated(make, (W, {"x": X}, key), 1, NUMBER)
    expected, expected_grads = total({"x": X}, lambda batch, n: (used, batch, jax.random.fold_in(dropout, n)))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    np.testing.assert_allclose(grads, expected_grads + jax.random.normal(new, W.shape), rtol=1e-5, atol=1e-5)


def test_a_key_made_where_it_cannot_be_folded_is_refused():
    @jax.custom_vjp
    def noisy(x):
        return x + jax.random.normal(jax.random.key(0), x.shape)

    noisy.defvjp(lambda x: (noisy(x), None), lambda _, cotangent: (cotangent,))

    def make(value_and_grad):
        return lambda w, batch, key: value_and_grad(lambda w: jnp.sum(noisy(batch["x"] @ w)))(w)

    with pytest.raises(NotImplementedError, match=r"made inside of custom_vjp_call.*; make it before"):
        accumulated(make, (W, {"x": X}, jax.random.key(1)), 1, NUMBER)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_the_loss_returns_is_refused(kind):
    def make(value_and_grad):
        def step(w, batch, key):
            return value_and_grad(lambda w: (used(w, batch, key), jax.random.split(key)[0]), has_aux=True)(w)

        return step

    with pytest.raises(NotImplementedError, match=r"a result of the loss is a key .*; split the key before the loss"):
        accumulated(make, (W, {"x": X}, KINDS[kind](1)), 1, NUMBER)


def assert_like_folded(make, batch, key, reference):
    for one, other in zip(accumulated(make, (W, batch, key), 1, NUMBER), total(batch, reference), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def total(batch, reference):
    """The sum over micro-batches of a loss that is one over samples, and of its gradients."""
    size = len(X) // NUMBER
    parts = [{name: array[n * size : (n + 1) * size] for name, array in batch.items()} for n in range(NUMBER)]
    each = []
    for n, part in enumerate(parts):
        loss, *given = reference(part, n)
        each.append(jax.value_and_grad(loss)(W, *given))
    return jax.tree_util.tree_map(lambda *values: sum(values), *each)


ROW = np.arange(6.0, dtype=np.float32)


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
    closed = jax.make_jaxpr(function)(make_key(1), ROW)
    plain = with_plain_keys(closed)
    atoms = [*plain.jaxpr.invars, *plain.jaxpr.outvars, *(v for e in plain.eqns for v in (*e.invars, *e.outvars))]
    assert not any(is_key(atom.aval) for atom in atoms)
    found = jax.jit(jax.core.jaxpr_as_fun(plain))(words_of(make_key(1)), ROW)
    expected = map(words_of, jax.tree_util.tree_leaves(jax.jit(function)(make_key(1), ROW)))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_constants_are_words_too():
    key = jax.random.key(1)
    plain = with_plain_keys(jax.make_jaxpr(lambda x: drawn(key, x))(ROW))
    np.testing.assert_allclose(jax.core.jaxpr_as_fun(plain)(ROW)[0], drawn(key, ROW), rtol=1e-6)


def test_a_tree_is_put_together_with_its_keys():
    keys = jax.random.split(jax.random.key(1), 3)
    leaves, structure = jax.tree_util.tree_flatten(with_words({"keys": keys, "x": ROW}))
    assert [leaf.shape for leaf in leaves] == [(3, 2), (6,)]
    again = structure.unflatten(leaves)
    assert again["keys"].dtype == keys.dtype
    np.testing.assert_array_equal(jax.random.key_data(again["keys"]), jax.random.key_data(keys))
    assert structure.unflatten(["here", None])["keys"] == "here"
    abstract = structure.unflatten([ShapedArray((3, 2), jnp.uint32), None])["keys"]
    assert (abstract.shape, abstract.dtype) == ((3,), keys.dtype)
    (words,) = jax.tree_util.tree_leaves(with_words(jax.ShapeDtypeStruct((3,), keys.dtype)))
    assert (words.shape, words.dtype) == ((3, 2), jnp.uint32)
