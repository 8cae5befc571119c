"""Which branch of a cond stands for all: the one with the most operations."""

from __future__ import annotations

from collections.abc import Sequence

from jax import core

from alpa_dejavu.layers.features._products import convolution_flop, dot_flop


def heaviest(branches: Sequence[core.Jaxpr]) -> core.Jaxpr:
    """The branch with the most operations; the first one of those that have as many."""
    return max(branches, key=_operations)


def _operations(jaxpr: core.Jaxpr) -> float:
    """Operations of products, and one for each element of all other results."""
    return sum(_of_equation(equation) for equation in jaxpr.eqns)


def _of_equation(equation: core.JaxprEqn) -> float:
    inner = list(core.jaxprs_in_params(equation.params))
    if equation.primitive.name == "cond":
        return max(map(_operations, inner))
    if inner:
        return sum(map(_operations, inner)) * float(equation.params.get("length", 1))
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in equation.invars[:2]]
    results = [float(getattr(var.aval, "size", 1)) for var in equation.outvars]
    if equation.primitive.name == "dot_general":
        return dot_flop(equation.params, shapes[0], results[0])
    if equation.primitive.name == "conv_general_dilated":
        return convolution_flop(equation.params, shapes[0], shapes[1], equation.outvars[0].aval.shape)
    return sum(results)
