"""The kernels' equations of attention that was found, and the equations that they replace."""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from jax import core, lax

from alpa_dejavu.layers._jaxprs import equation_of, new_variable
from alpa_dejavu.layers.attention._equations import Equations, Location
from alpa_dejavu.layers.attention._labels import shape_of
from alpa_dejavu.layers.attention._pairs import AttentionPair
from alpa_dejavu.layers.attention._pattern import AttentionPattern
from alpa_dejavu.layers.attention._precision import MOVES, narrow_operands, narrow_results
from alpa_dejavu.layers.attention.kernel import SIDES, attention_equation


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Replacement:
    """A kernel's equation, the number of its pass, and the places of the equations that it replaces."""

    number: int
    equation: core.JaxprEqn
    replaced: frozenset[Location]


def replacements(equations: Equations, pair: AttentionPair) -> list[Replacement]:
    """Returns the kernels of attention in a forward and a backward pass, with the equations that they replace."""
    ahead, back = pair.ahead, pair.back
    if back is None:
        return [_forward(equations, ahead, None)]
    rows = new_variable(core.ShapedArray(shape_of(ahead.row_sums), np.dtype("float32")))
    forward = _forward(equations, ahead, rows)
    output = _kept_output(equations, forward.equation.outvars[0], back.region.number)
    return [forward, _backward(equations, pair, back, output, rows)]


def _forward(equations: Equations, ahead: AttentionPattern, rows: core.Var | None) -> Replacement:
    """The kernel of the forward products; with `rows` it returns a number for each row as that variable, too."""
    assert ahead.output is not None
    sides, casts = narrow_operands(equations, [ahead.queries, ahead.keys, ahead.values])
    results, down = narrow_results(equations, equations.at(ahead.output).outvars)
    own = {*ahead.region.inside, *ahead.region.enters, ahead.output, *down}
    made = results if rows is None else [*results, ahead.row_sums]
    body = equations.body(own | casts, list(dict.fromkeys(sides)), made, ahead.scores)
    if rows is not None and ahead.row_sums.aval.dtype != rows.aval.dtype:
        params = {"new_dtype": rows.aval.dtype, "weak_type": False, "sharding": None}
        precise = equation_of(lax.convert_element_type_p, [ahead.row_sums], rows.aval, **params)
        body = body.replace(eqns=[*body.eqns, precise], outvars=[*results, *precise.outvars])
    returned = results if rows is None else [*results, rows]
    equation = attention_equation(ahead.kernel, body, body.invars, returned)
    return Replacement(ahead.region.number, equation, frozenset(own))


def _backward(
    equations: Equations, pair: AttentionPair, back: AttentionPattern, output: core.Var, rows: core.Var
) -> Replacement:
    """The kernel of the backward products, which computes scores again from queries and keys."""
    assert back.cotangent is not None
    ahead, region = pair.ahead, back.region
    slopes = [back.gradients[side] for side in SIDES if side in back.gradients]
    made = [equations.at(location).outvars[0] for location in (*slopes, *sorted(region.sums))]
    results, down = narrow_results(equations, made)
    (*sides, cotangent), casts = narrow_operands(equations, [back.queries, back.keys, back.values, back.cotangent])
    own = {*region.inside, *region.enters, *region.sums, *slopes, *down}
    again: set[Location] = set()
    names: dict[core.Var, core.Var] = {}
    if ahead.region.number != region.number:
        again = {*ahead.region.inside, *ahead.region.enters}
        names = {ahead.queries: back.queries, ahead.keys: back.keys}
    operands = list(dict.fromkeys([*sides, output, rows, cotangent]))
    body = equations.body(own | again | casts, operands, results, back.scores, names)
    kernel = dataclasses.replace(back.kernel, gradients=SIDES)
    return Replacement(region.number, attention_equation(kernel, body, body.invars, results), frozenset(own))


def _kept_output(equations: Equations, output: core.Var, number: int) -> core.Var:
    """The attention's output as a backward pass takes it anyway, maybe reshaped; or else the output itself."""
    taken = set(equations.passes[number].invars)
    stack = [output] if equations.makers[output][0] != number else []
    while stack:
        var = stack.pop()
        if var in taken:
            return var
        for taker in equations.takers.get(var, ()):
            equation = equations.at(taker)
            if taker[0] != number and equation.primitive.name in (*MOVES, "convert_element_type"):
                stack += equation.outvars
    return output
