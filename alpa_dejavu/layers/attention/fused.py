"""A layered step with its attention as fused kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, final

import jax
import numpy as np
from jax import dtypes, lax
from jax.ad_checkpoint import checkpoint_name

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu._util.jax_api import core, new_jaxpr, new_variable
from alpa_dejavu.layers._jaxprs import equation_of, live_equations, primitives_in, shape_of, variables
from alpa_dejavu.layers.attention._equations import Equations, Location
from alpa_dejavu.layers.attention._labels import RESHAPES
from alpa_dejavu.layers.attention._pairs import AttentionPair, pairs_of
from alpa_dejavu.layers.attention._pattern import AttentionPattern
from alpa_dejavu.layers.attention.kernel import SIDES, attention_equation
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.layers._cut import LayeredStep

_CHOICES = ("plain", "fused")
_NAME = "alpa_dejavu.fused_attention"


def mark_fused(scores: jax.Array) -> jax.Array:
    """Returns scores of attention as they are, and marks in a traced step that one fused kernel computes with them."""
    marked: jax.Array = checkpoint_name(scores, _NAME)
    return marked


def is_marked(equations: Equations, pair: AttentionPair) -> bool:
    """Returns whether the scores of an attention that is written out are marked as those of one fused kernel."""
    inside = (equations.at(place) for place in pair.ahead.region.inside)
    return any(equation.primitive.name == "name" and equation.params["name"] == _NAME for equation in inside)


def with_attention(layered: LayeredStep, attention: str = "plain") -> LayeredStep:
    """Returns a layered step in whose jaxprs each attention that a fused kernel computes is one equation.

    Its scores and probabilities aren't kept for the backward pass, which computes them again from queries, keys and a
    number for each row. Attention that isn't whole in one layer, or whose scores are used for something else, stays as
    it is. So does with "plain" what isn't marked as fused.

    Args:
        layered: the step, cut into layers.
        attention: how attention that is written out is computed: "plain" as XLA compiles its operations, or "fused".

    Raises:
        ValueError: `attention` is something else.
    """
    checks.one_of("step", "attention", attention, _CHOICES)
    passes = [*layered.forward, *reversed(layered.backward)]
    if attention == "plain" and not any("name" in primitives_in(step) for jaxpr in passes for step in jaxpr.eqns):
        return layered
    with collector_paused():
        left = {var for update in layered.updates if update is not None for var in update.invars}
        equations = Equations(passes, left | layered.results, layered.constants)
        pairs = pairs_of(equations, len(layered.forward))
        if attention == "plain":
            pairs = [pair for pair in pairs if is_marked(equations, pair)]
        kernels = [kernel for pair in pairs for kernel in _replacements(equations, pair)]
        if not kernels:
            return layered
        rewritten = _rewritten(equations, kernels)
    number = len(layered.forward)
    return dataclasses.replace(layered, forward=tuple(rewritten[:number]), backward=tuple(reversed(rewritten[number:])))


def _rewritten(equations: Equations, kernels: Sequence[Replacement]) -> list[core.Jaxpr]:
    """The passes with kernels in place of what they replace, without what is then not needed any more."""
    needed = set(equations.left)
    rewritten: list[core.Jaxpr] = []
    for number in range(len(equations.rows) - 1, -1, -1):
        jaxpr = equations.passes[number]
        own = [kernel for kernel in kernels if kernel.number == number]
        if own or not needed.issuperset(variables(jaxpr.outvars)):
            jaxpr = _pruned(jaxpr, _ordered(equations, number, own), needed, equations.closed)
        needed.update(jaxpr.invars)
        rewritten.append(jaxpr)
    return rewritten[::-1]


def _ordered(equations: Equations, number: int, kernels: Sequence[Replacement]) -> list[core.JaxprEqn]:
    """A pass's equations and kernels, each after what it takes, and otherwise in the order of the pass.

    A kernel stands where the last of its operands has been made.
    """
    replaced = frozenset().union(*(kernel.replaced for kernel in kernels))
    row = equations.rows[number]
    kept = [((n, 0), equation) for n, equation in enumerate(row) if (number, n) not in replaced]
    for kernel in kernels:
        places = [equations.makers.get(var, (-1, -1)) for var in variables(kernel.equation.invars)]
        kept.append(((max((n for p, n in places if p == number), default=-1), 1), kernel.equation))
    items = [equation for _, equation in sorted(kept, key=lambda item: item[0])]
    makers = {var: n for n, equation in enumerate(items) for var in equation.outvars}
    order: dict[int, None] = {}
    most = sum(len(equation.invars) + 1 for equation in items)
    for first in range(len(items)):
        stack = [first]
        while stack:
            if len(stack) > most:
                raise RuntimeError("kernels of attention wait for each other; plan with attention 'plain'")
            waits = [makers[var] for var in variables(items[stack[-1]].invars) if var in makers]
            waits = [n for n in waits if n not in order]
            if waits:
                stack += waits
            else:
                order.setdefault(stack.pop())
    return [items[n] for n in order]


def _pruned(
    jaxpr: core.Jaxpr, equations: Sequence[core.JaxprEqn], needed: set[core.Var], closed: Collection[core.Var]
) -> core.Jaxpr:
    """A jaxpr of some equations; its results are those of before, and others, that are needed."""
    computed = {var for equation in equations for var in equation.outvars}
    results = [atom for atom in jaxpr.outvars if not isinstance(atom, core.Var) or atom in needed]
    results += [var for equation in equations for var in equation.outvars if var in needed and var not in results]
    alive = live_equations(equations, results)
    kept = [equation for equation, is_alive in zip(equations, alive, strict=True) if is_alive]
    read = dict.fromkeys(variables([*(atom for equation in kept for atom in equation.invars), *results]))
    used = [var for var in read if var not in computed]
    constvars = [var for var in used if var in closed or var in jaxpr.constvars]
    before = [var for var in jaxpr.invars if var in read]
    invars = [var for var in dict.fromkeys([*before, *used]) if var not in constvars]
    return new_jaxpr(invars, results, kept, set().union(*(equation.effects for equation in kept)), constvars)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Replacement:
    """A kernel's equation, the number of its pass, and the places of the equations that it replaces."""

    number: int
    equation: core.JaxprEqn
    replaced: frozenset[Location]


def _replacements(equations: Equations, pair: AttentionPair) -> list[Replacement]:
    """The kernels of attention in a forward and a backward pass, with the equations that they replace."""
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
    sides, casts = _narrow_operands(equations, [ahead.queries, ahead.keys, ahead.values])
    results, down = _narrow_results(equations, equations.at(ahead.output).outvars)
    own = {*ahead.region.inside, *ahead.region.enters, ahead.output, *down}
    computed = results if rows is None else [*results, ahead.row_sums]
    body = equations.body(own | casts, list(dict.fromkeys(sides)), computed, ahead.scores)
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
    wide = [equations.at(location).outvars[0] for location in (*slopes, *sorted(region.sums))]
    results, down = _narrow_results(equations, wide)
    (*sides, cotangent), casts = _narrow_operands(equations, [back.queries, back.keys, back.values, back.cotangent])
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
    operands = set(equations.passes[number].invars)
    stack = [output] if equations.makers[output][0] != number else []
    while stack:
        var = stack.pop()
        if var in operands:
            return var
        for taker in equations.takers.get(var, ()):
            equation = equations.at(taker)
            if taker[0] != number and equation.primitive.name in (*MOVES, "convert_element_type"):
                stack += equation.outvars
    return output


MOVES = RESHAPES | {"transpose", "copy", "copy_p", "name"}
"""Primitives that leave the numbers of an array as they are."""


def _narrow_operands(equations: Equations, wide: Sequence[core.Var]) -> tuple[list[core.Var], set[Location]]:
    """Operands as they are before they are made more precise, and the equations from there to the operands."""
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


def _narrow_results(equations: Equations, wide: Sequence[core.Var]) -> tuple[list[core.Var], set[Location]]:
    """Results that nothing else takes as they are after they are made less precise, and the equations to there."""
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
    return is_narrower and all(dtypes.issubdtype(dtype, np.floating) for dtype in types)
