"""A kernel's operands and results as they lie in memory, where the model converts them for its products alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jax import core, dtypes

from alpa_dejavu.layers.attention._equations import Equations, Location

MOVES = frozenset({"reshape", "transpose", "squeeze", "expand_dims", "copy", "copy_p", "name"})
"""Primitives that leave the numbers of an array as they are."""


def narrow_operands(equations: Equations, wide: Sequence[core.Var]) -> tuple[list[core.Var], set[Location]]:
    """Returns operands as they are before they are made more precise, and the equations from there to the operands."""
    narrow, conversions = [], set()
    for var in wide:
        way: list[Location] = []
        source: core.Atom = var
        while isinstance(source, core.Var) and (location := equations.makers.get(source)) is not None:
            equation = equations.at(location)
            way.append(location)
            if equation.primitive.name == "convert_element_type" and _narrows(equation.invars[0], source):
                var = equation.invars[0]
                conversions.update(way)
            if equation.primitive.name not in MOVES:
                break
            source = equation.invars[0]
        narrow.append(var)
    return narrow, conversions


def narrow_results(equations: Equations, wide: Sequence[core.Var]) -> tuple[list[core.Var], set[Location]]:
    """Returns results as they are after they are made less precise, and the equations from the results to there.

    A result that anything else takes is left as it is.
    """
    narrow, conversions = [], set()
    for var in wide:
        way: list[Location] = []
        end = var
        while len(takers := equations.takers.get(end, [])) == 1 and end not in equations.left:
            equation = equations.at(takers[0])
            way.append(takers[0])
            if takers[0][0] != equations.makers[end][0]:
                break
            if equation.primitive.name == "convert_element_type" and _narrows(equation.outvars[0], end):
                var = equation.outvars[0]
                conversions.update(way)
            if equation.primitive.name not in MOVES:
                break
            (end,) = equation.outvars
        narrow.append(var)
    return narrow, conversions


def _narrows(narrow: core.Atom, wide: core.Atom) -> bool:
    """Whether two arrays are of floating-point numbers, and those of the first take fewer bytes."""
    types = [atom.aval.dtype for atom in (narrow, wide)]
    is_narrower: bool = types[0].itemsize < types[1].itemsize
    return is_narrower and all(dtypes.issubdtype(one, np.floating) for one in types)
