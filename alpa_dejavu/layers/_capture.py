"""Catching the gradient that a train step takes while the step is traced.

All of jax's reverse-mode gradients (`jax.grad`, `jax.value_and_grad`, `jax.vjp`, and what is made of them: Alpa's,
Equinox's) go through one function of jax. For as long as a step is traced, ours stands there: it traces what is
differentiated, and puts one equation in place of its values and gradients. Gradients inside of what is differentiated
are left to jax.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import core
from jax._src import api, config
from jax._src.interpreters import ad, batching, partial_eval
from jax.tree_util import tree_flatten, tree_unflatten

gradient_p = core.Primitive("alpa_dejavu_gradient")
"""Operands: what the loss captures, then what it is differentiated by. Results: the loss function's, then gradients.
Parameters: `loss`, a jaxpr without constants, and `num_captured`."""
gradient_p.multiple_results = True

_state = threading.local()


@gradient_p.def_abstract_eval
def _avals(*operands: core.AbstractValue, loss: core.Jaxpr, num_captured: int) -> list[core.AbstractValue]:
    return [*(atom.aval for atom in loss.outvars), *(aval.at_least_vspace() for aval in operands[num_captured:])]


def _refused(transformation: str) -> Callable[..., Any]:
    def rule(*_args: Any, **_params: Any) -> Any:
        raise NotImplementedError(
            f"the train step takes its gradient under {transformation}; take it once, of the mean over the batch"
        )

    return rule


batching.primitive_batchers[gradient_p] = _refused("jax.vmap")
ad.primitive_jvps[gradient_p] = _refused("another gradient or jax.jvp")


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Turns gradients that this thread traces within a `with` block into equations of the primitive `gradient_p`. jax's
    caches of traced functions are kept apart: what is traced in the block isn't found outside of it. Raises
    RuntimeError if this version of jax takes gradients in another way.
    """
    original = api._vjp
    if tuple(inspect.signature(original).parameters) != ("fun", "primals", "has_aux"):
        raise RuntimeError(f"jax {jax.__version__} takes gradients in a way that isn't known here; install jax 0.4.30")
    _state.active = True
    api._vjp = _catching(original)
    try:
        with config.random_seed_offset(0x0A17A):
            yield
    finally:
        api._vjp = original
        _state.active = False


def _catching(original: Callable[..., Any]) -> Callable[..., Any]:
    def _vjp(fun: Any, *primals: Any, has_aux: bool = False) -> Any:
        if not getattr(_state, "active", False):
            return original(fun, *primals, has_aux=has_aux)
        _state.active = False
        try:
            return _bind(fun, primals, has_aux)
        finally:
            _state.active = True

    return _vjp


def _bind(fun: Any, primals: Sequence[Any], has_aux: bool) -> Any:
    leaves, tree = tree_flatten(tuple(primals))
    closed, shapes = jax.make_jaxpr(fun.call_wrapped, return_shape=True)(*primals)
    loss = partial_eval.convert_constvars_jaxpr(closed.jaxpr)
    results = gradient_p.bind(*closed.consts, *leaves, loss=loss, num_captured=len(closed.consts))
    returned = tree_unflatten(tree_flatten(shapes)[1], results[: len(loss.outvars)])

    def pullback(_cotangents: Any) -> Any:
        return tree_unflatten(tree, results[len(loss.outvars) :])

    return (returned[0], pullback, returned[1]) if has_aux else (returned, pullback)
