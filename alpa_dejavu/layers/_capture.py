"""Catching the gradient that a train step takes while the step is traced.

All of jax's reverse-mode gradients (`jax.grad`, `jax.value_and_grad`, `jax.vjp`, and what is made of them: Alpa's,
Equinox's) go through one function of jax. For as long as a step is traced, ours stands there: it traces what is
differentiated, and puts one equation in place of its values and gradients. Gradients inside of what is differentiated
are left to jax.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.tree_util import tree_flatten, tree_unflatten

from alpa_dejavu._util.jax_api import ad, batching, core, gradients_by, new_jaxpr

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
    """Turns gradients that this thread traces within a `with` block into equations of `gradient_p`. Raises
    RuntimeError if this version of jax takes gradients in another way.
    """
    _state.active = True
    try:
        with gradients_by(_captured):
            yield
    finally:
        _state.active = False


def _captured(original: Callable[..., Any], fun: Any, primals: Sequence[Any], has_aux: bool) -> Any:
    if not getattr(_state, "active", False):
        return original(fun, *primals, has_aux=has_aux)
    _state.active = False
    try:
        return _bind(fun, primals, has_aux)
    finally:
        _state.active = True


def _bind(fun: Any, primals: Sequence[Any], has_aux: bool) -> Any:
    leaves, tree = tree_flatten(tuple(primals))
    closed, shapes = jax.make_jaxpr(getattr(fun, "call_wrapped", fun), return_shape=True)(*primals)
    inner = closed.jaxpr
    loss = new_jaxpr([*inner.constvars, *inner.invars], inner.outvars, inner.eqns, inner.effects)
    results = gradient_p.bind(*closed.consts, *leaves, loss=loss, num_captured=len(closed.consts))
    returned = tree_unflatten(tree_flatten(shapes)[1], results[: len(loss.outvars)])

    def pullback(_cotangents: Any) -> Any:
        return tree_unflatten(tree, results[len(loss.outvars) :])

    return (returned[0], pullback, returned[1]) if has_aux else (returned, pullback)
