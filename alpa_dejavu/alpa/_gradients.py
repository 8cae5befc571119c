"""A train step that takes its gradient by jax, as Alpa wants it: with its gradients marked, and run by a plan.

`jax.grad`, `jax.value_and_grad` and Alpa's own go through one function of jax; while a step is traced for Alpa, ours
stands there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from alpa_dejavu.problem import Plan

_PARAMETERS = ("fun", "primals", "has_aux")
_state = threading.local()


def parallelized(step: Callable[..., Any], plan: Plan, donates: bool = True) -> Any:
    """Returns the train step that Alpa runs by a plan; it donates the state, its first argument, or doesn't."""
    import alpa

    from alpa_dejavu.alpa.layer_option import DejavuLayerOption
    from alpa_dejavu.alpa.option import DejavuStageOption
    from alpa_dejavu.exports.alpa_code import remat_layers

    layers = plan.num_layers if plan.layer_option == "auto" else None
    method = alpa.PipeshardParallel(
        num_micro_batches=plan.num_micro_batches,
        pipeline_schedule=plan.schedule,
        layer_option=DejavuLayerOption(layers, remat_layers(plan)),
        stage_option=DejavuStageOption(plan=plan),
    )
    return alpa.parallelize(with_marked_gradients(step), method=method, donate_argnums=(0,) if donates else ())


def with_marked_gradients(step: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the train step with its outermost gradient marked for Alpa, be it taken by jax's functions or Alpa's."""

    @functools.wraps(step)
    def train_step(*args: Any) -> Any:
        with _marking():
            return step(*args)

    return train_step


@contextlib.contextmanager
def _marking() -> Iterator[None]:
    import alpa.api
    from alpa.util import GradFuncTransformContext
    from jax._src import api

    original, mark, transforms = api._vjp, alpa.api.mark_gradient, GradFuncTransformContext.transforms
    if tuple(inspect.signature(original).parameters) != _PARAMETERS:
        raise RuntimeError("this jax takes gradients in a way that isn't known here; install jax 0.4.30")

    def _vjp(fun: Any, *primals: Any, has_aux: bool = False) -> Any:
        if not getattr(_state, "active", False):
            return original(fun, *primals, has_aux=has_aux)
        _state.active = False
        try:
            return _marked(original, mark, transforms, fun, primals, has_aux)
        finally:
            _state.active = True

    _state.active = True
    # Alpa's own gradients come here, too: they must not transform and mark a second time.
    GradFuncTransformContext.transforms = []
    alpa.api.mark_gradient = lambda gradients: gradients
    api._vjp = _vjp
    try:
        yield
    finally:
        api._vjp, alpa.api.mark_gradient, GradFuncTransformContext.transforms = original, mark, transforms
        _state.active = False


def _marked(
    vjp: Callable[..., Any],
    mark: Callable[..., Any],
    transforms: list[Callable[..., Any]],
    fun: Any,
    primals: tuple[Any, ...],
    has_aux: bool,
) -> Any:
    """Value and gradients at once, marked; the pullback then only hands the gradients out."""
    import jax
    import jax.numpy as jnp
    from jax._src import linear_util

    function = fun.call_wrapped
    for transform in transforms:
        function = transform(function)
    value, pullback, *auxiliary = vjp(linear_util.wrap_init(function), *primals, has_aux=has_aux)
    gradients = pullback(jax.tree_util.tree_map(jnp.ones_like, value))
    value, auxiliary, gradients = mark((value, auxiliary, gradients))
    return (value, lambda _cotangent: gradients, *auxiliary)
