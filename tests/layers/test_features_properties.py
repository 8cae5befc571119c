"""Features through calls, loops and branches nested in any order, and keys of jaxprs that are alike."""

import re

import jax
import jax.numpy as jnp
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_dejavu.layers.features import layer_features
from alpa_dejavu.layers.features.structure import structure

X, WEIGHT = jnp.zeros((4, 8)), jnp.zeros((8, 8))
ONCE = 2 * 4 * 8 * 8


def product(w, x):
    return jnp.tanh(x @ w)


def with_rules(function):
    wrapped = jax.custom_vjp(function)
    wrapped.defvjp(lambda w, x: (function(w, x), (w, x)), lambda kept, g: jax.vjp(function, *kept)[1](g))
    return wrapped


def with_tangents(function):
    wrapped = jax.custom_jvp(function)
    wrapped.defjvp(lambda primals, tangents: jax.jvp(function, primals, tangents))
    return wrapped


def scanned(length):
    return lambda f: lambda w, x: jax.lax.scan(lambda c, _: (f(w, c), None), x, None, length=length)[0]


def looped(f):
    return lambda w, x: jax.lax.while_loop(lambda c: c.sum() < 1, lambda c: f(w, c), x)


def chosen(f):
    """A branch of many small operations, and one of the function."""
    return lambda w, x: jax.lax.cond(x.sum() > 0, lambda: jnp.sin(jnp.cos(jnp.sin(x))), lambda: f(w, x))


def mapped(f):
    return lambda w, x: jax.vmap(lambda row: f(w, row[None])[0])(x)


TWICE = ("twice", lambda f: lambda w, x: f(w, f(w, x)), 2)
PLAIN = [("pjit", jax.jit, 1), ("remat", jax.checkpoint, 1), ("custom_vjp", with_rules, 1), TWICE]
PLAIN += [("custom_jvp", with_tangents, 1), ("scan", scanned(3), 3), ("cond", chosen, 1)]
ONE_WAY = [("while", looped, 1), ("fori", lambda f: lambda w, x: jax.lax.fori_loop(0, 5, lambda _, c: f(w, c), x), 5)]
ONE_WAY += [("vmap", mapped, 1)]


def nested(wrappers):
    """The product in all wrappers, and how often it runs."""
    function, times = product, 1
    for _, wrap, count in wrappers:
        function, times = wrap(function), times * count
    return function, times


def features(function, *arguments):
    return layer_features(jax.make_jaxpr(function)(*arguments).jaxpr).operators


def wrappers_of(kinds):
    return st.lists(st.sampled_from(kinds), max_size=4)


@settings(max_examples=40, deadline=None)
@given(wrappers_of(PLAIN + ONE_WAY))
def test_products_run_as_often_as_all_loops_around_them(wrappers):
    function, times = nested(wrappers)
    found = features(function, WEIGHT, X)
    assert found.product_flop == times * ONCE
    assert found.total_flop >= found.product_flop
    assert (found.read_bytes >= 0).all()
    assert (found.written_bytes >= 0).all()


@settings(max_examples=30, deadline=None)
@given(wrappers_of(PLAIN))
def test_gradients_take_two_products_more_and_those_that_are_computed_again(wrappers):
    function, times = nested(wrappers)
    found = features(jax.grad(lambda w, x: function(w, x).sum(), argnums=(0, 1)), WEIGHT, X).product_flop
    names = [name for name, *_ in wrappers]
    again = sum(name in ("remat", "custom_vjp") for name in names)
    assert 3 * times * ONCE <= found <= (3 + again) * times * ONCE
    if not again:
        assert found == 3 * times * ONCE


@settings(max_examples=25, deadline=None)
@given(wrappers_of(PLAIN + ONE_WAY), wrappers_of(PLAIN + ONE_WAY))
def test_jaxprs_are_alike_if_they_are_written_alike(one, other):
    def key(wrappers, weight=WEIGHT):
        return structure(jax.make_jaxpr(nested(wrappers)[0])(weight, X).jaxpr)

    assert key(one) == key(one)
    assert (key(one) == key(other)) == (written(one) == written(other))
    assert key(one) != key(one, WEIGHT.astype(jnp.float16))


def written(wrappers):
    """The jaxpr as text, without the addresses of functions."""
    return re.sub("0x[0-9a-f]+", "", str(jax.make_jaxpr(nested(wrappers)[0])(WEIGHT, X)))
