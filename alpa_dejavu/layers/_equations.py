"""The operations that an equation of the loss counts for when layers are balanced, by Alpa's rule.

Matrix products and convolutions count, by their operations; an equation that has a `jaxpr` (a jitted or rematerialised
function, a scan) counts what is in it once; nothing else does, not even a product inside of a `custom_vjp` or a cond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import core
from numpy.typing import NDArray

from alpa_dejavu.layers.features._products import convolution_flop, dot_flop


def costs(equations: Sequence[core.JaxprEqn]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Returns which equations have products, and the operations of each; both of shape (number of equations,)."""
    known: dict[int, tuple[bool, float]] = {}
    counted = [_count(equation, known) for equation in equations]
    return np.array([c[0] for c in counted], dtype=np.bool_), np.array([c[1] for c in counted], dtype=np.float64)


def _count(equation: core.JaxprEqn, known: dict[int, tuple[bool, float]]) -> tuple[bool, float]:
    if "jaxpr" in equation.params:
        return _count_all(equation.params["jaxpr"], known)
    name = equation.primitive.name
    if name not in ("dot_general", "conv_general_dilated"):
        return False, 0.0
    left, right = (tuple(atom.aval.shape) for atom in equation.invars[:2])
    result = equation.outvars[0].aval
    if name == "dot_general":
        return True, dot_flop(equation.params, left, result.size)
    return True, convolution_flop(equation.params, left, right, result.shape)


def _count_all(jaxpr: Any, known: dict[int, tuple[bool, float]]) -> tuple[bool, float]:
    """The sum over a jaxpr's equations; `known` has what was counted before, by the jaxpr's identity."""
    if id(jaxpr) not in known:
        counted = [_count(inner, known) for inner in jaxpr.eqns]
        known[id(jaxpr)] = any(heavy for heavy, _ in counted), sum(flop for _, flop in counted)
    return known[id(jaxpr)]
