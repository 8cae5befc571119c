"""Frozen parameters: layers without a backward pass, and parameters that a step returns as it got them.

Alpa counts on a backward pass for every layer, so a layer without one gets an empty one. And it counts on a stage that
makes each result, so an argument that is returned unchanged is copied where the optimizer runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jax._src.lax.lax import copy_p
from jax.core import Literal

from alpa_stock_jax._patch import Patch


def _complete_backward(module: ModuleType) -> None:
    stock = module.mark_missing_vars_in_backward_computation_pipeline_marks

    def mark_missing_vars_in_backward_computation_pipeline_marks(
        computations: Sequence[Any], global_invars: Any, global_outvars: Any, gensym_func: Any
    ) -> Any:
        """As Alpa's, for layers without a backward pass too."""
        return stock(_with_empty_backward(computations), global_invars, global_outvars, gensym_func)

    module.mark_missing_vars_in_backward_computation_pipeline_marks = (  # type: ignore[attr-defined]
        mark_missing_vars_in_backward_computation_pipeline_marks
    )


def _with_empty_backward(computations: Sequence[Any]) -> list[Any]:
    """Forward passes in order, then a backward pass for each of them in reverse order."""
    backward = {c.name: c for c in computations if c.name.endswith("_backward")}
    forward = [c for c in computations if c.name not in backward]
    names = [f"{c.name}_backward" for c in reversed(forward)]
    if not backward or not set(backward) <= set(names):
        return list(computations)  # not the layers of a step with gradients: Alpa says what is wrong with them
    return forward + [backward.get(name) or _empty(name) for name in names]


def _empty(name: str) -> Any:
    from alpa.pipeline_parallel.computation import JaxPipelineComputation
    from alpa.pipeline_parallel.primitive_def import mark_pipeline_jaxpreqn

    markers = [mark_pipeline_jaxpreqn([], [], name, kind) for kind in ("start", "end")]
    return JaxPipelineComputation(name, eqns=markers)


def _copy_passed_through(module: ModuleType) -> None:
    stock = module.split_compute_grad_and_apply_grad

    def split_compute_grad_and_apply_grad(
        closed_jaxpr: Any, gensym_fn: Any, num_microbatch: int, inference_mode: bool
    ) -> Any:
        """As Alpa's, for steps that return arguments unchanged too."""
        if not inference_mode:
            closed_jaxpr = _with_copies(closed_jaxpr, gensym_fn)
        return stock(closed_jaxpr, gensym_fn, num_microbatch, inference_mode)

    module.split_compute_grad_and_apply_grad = split_compute_grad_and_apply_grad  # type: ignore[attr-defined]


def _with_copies(closed_jaxpr: Any, gensym_fn: Any) -> Any:
    from alpa.util import clone_jaxpr, new_jaxpr_eqn

    jaxpr = closed_jaxpr.jaxpr
    arguments = set(jaxpr.invars)
    copies, outvars = [], []
    for var in jaxpr.outvars:
        if not isinstance(var, Literal) and var in arguments:
            copy = gensym_fn(var.aval)
            copies.append(new_jaxpr_eqn([var], [copy], copy_p, {}))
            var = copy
        outvars.append(var)
    return clone_jaxpr(closed_jaxpr, outvars=outvars, eqns=[*jaxpr.eqns, *copies]) if copies else closed_jaxpr


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.computation",
        reason="layers without a backward pass, all of whose parameters are frozen, get an empty one",
        apply=_complete_backward,
        expects={
            "mark_missing_vars_in_backward_computation_pipeline_marks": (
                "computations", "global_invars", "global_outvars", "gensym_func",
            ),
            "JaxPipelineComputation": None,
        },
    ),
    Patch(
        module="alpa.pipeline_parallel.apply_grad",
        reason="an argument that a step returns unchanged, as a frozen parameter, is copied where the optimizer runs",
        apply=_copy_passed_through,
        expects={
            "split_compute_grad_and_apply_grad": ("closed_jaxpr", "gensym_fn", "num_microbatch", "inference_mode"),
        },
        uses=("jax._src.lax.lax.copy_p",),
    ),
)  # fmt: skip
