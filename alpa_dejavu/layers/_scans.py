"""Scans over layers unrolled: a loop whose every turn has weights of its own becomes that many layers.

A parameter that such a scan takes apart, along its first dimension, becomes as many parameters, one of each turn. So do
its gradient and what the optimizer keeps of it, as far as the update works element by element: what is not, as a norm
of the whole, takes them stacked again. A scan over time steps takes apart data, not weights, and stays as it is.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax

from alpa_dejavu._util.jax_api import bound, core, new_jaxpr, new_variable, scan_operands
from alpa_dejavu.layers._jaxprs import (
    CHECKPOINTS,
    body,
    named,
    primitives_in,
    renamed,
    shape_of,
    variables,
)
from alpa_dejavu.layers.features.operator_kinds import is_elementwise

__all__ = ["Unrolled", "unrolled"]

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
_REDUCTIONS = {"reduce_sum": lax.add, "reduce_max": lax.max, "reduce_min": lax.min}


@final
@dataclasses.dataclass(frozen=True)
class Unrolled:
    """A step's jaxprs in which scans over layers are unrolled.

    Attributes:
        loss, gradients, update: as those of a traced step.
        turns: the number of turns of each scan that was unrolled.
        left: the number of turns of each scan with products that wasn't: its turns share their weights.
    """

    loss: core.Jaxpr
    gradients: Mapping[core.Var, core.Var]
    update: core.Jaxpr | None
    turns: tuple[int, ...]
    left: tuple[int, ...]


def unrolled(
    loss: core.Jaxpr, gradients: Mapping[core.Var, core.Var], update: core.Jaxpr | None, data: frozenset[core.Var]
) -> Unrolled:
    """Unrolls the scans over layers in a step's jaxprs, as a traced step has them; `data` are its batch's operands."""
    scans = _Scans()
    scans.look(loss, {var: var for var in loss.invars if var not in data and var.aval.ndim > 1})
    turns, left = tuple(scans.turns), tuple(scans.left)
    if not turns:
        return Unrolled(loss, gradients, update, (), left)
    parts = {var: _parts(var) for var in loss.invars if var in scans.apart}
    flat = _interpreted(loss, parts, {}, stacked_results=False)
    if update is None:
        return Unrolled(flat, gradients, None, turns, left)
    names = {var: atom for var, atom in zip(loss.outvars, flat.outvars, strict=True) if isinstance(var, core.Var)}
    slopes = {gradients[var]: _parts(gradients[var]) for var in parts if var in gradients}
    shapes = {var.aval.shape for var in slopes}
    kept = {var: _parts(var) for var in update.invars if var.aval.shape in shapes and var not in parts | slopes | names}
    divided = _interpreted(update, parts | slopes | kept, names, stacked_results=True)
    pairs = {var: gradient for var, gradient in gradients.items() if var not in parts}
    for var in parts:
        if var in gradients:
            pairs.update(zip(parts[var], slopes[gradients[var]], strict=True))
    return Unrolled(flat, pairs, divided, turns, left)


def _parts(var: core.Var) -> list[core.Var]:
    count, *shape = var.aval.shape
    return [new_variable(core.ShapedArray(tuple(shape), var.aval.dtype)) for _ in range(count)]


@final
class _Scans:
    """The scans of a jaxpr: the parameters that those over layers take apart, and the numbers of their turns."""

    def __init__(self) -> None:
        self.apart: set[core.Var] = set()
        self.turns: list[int] = []
        self.left: list[int] = []

    def look(self, jaxpr: core.Jaxpr, origin: dict[core.Var, core.Var]) -> None:
        """Looks through a jaxpr and what it calls; `origin` has the parameter that an array is made of."""
        for equation in jaxpr.eqns:
            roots = [origin.get(atom) if isinstance(atom, core.Var) else None for atom in equation.invars]
            inner = body(equation, CHECKPOINTS)
            if _is_scan(equation):
                first = sum(scan_operands(equation.params))
                apart = [var for var in roots[first:] if var is not None]
                self.apart.update(apart)
                (self.turns if apart else self.left).append(equation.params["length"])
            elif inner is not None:
                within = {var: root for var, root in zip(inner.invars, roots, strict=True) if root is not None}
                self.look(inner, within)
                results = [within.get(atom) if isinstance(atom, core.Var) else None for atom in inner.outvars]
                origin.update((v, root) for v, root in zip(equation.outvars, results, strict=True) if root is not None)
            elif _is_elementwise(equation) and any(root is not None for root in roots):
                origin[equation.outvars[0]] = next(root for root in roots if root is not None)


def _is_scan(equation: core.JaxprEqn) -> bool:
    """Whether an equation is a scan with products."""
    return equation.primitive.name == "scan" and not _PRODUCTS.isdisjoint(primitives_in(equation))


def _is_elementwise(equation: core.JaxprEqn) -> bool:
    """Whether an equation makes one array, each element of it from numbers and the same elements of its operands."""
    return is_elementwise(equation) and all(
        shape_of(atom) in (shape_of(equation.outvars[0]), ()) for atom in equation.invars
    )


@final
class _Stack:
    """An array as its parts along the first dimension."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self.parts = list(parts)

    @staticmethod
    def part(operand: Any, n: int) -> Any:
        """Returns part n of a stack or of an array; a number itself."""
        if isinstance(operand, _Stack):
            return operand.parts[n]
        return operand[n] if jnp.ndim(operand) else operand


def _interpreted(
    jaxpr: core.Jaxpr,
    parts: Mapping[core.Var, Sequence[core.Var]],
    names: Mapping[core.Var, core.Atom],
    stacked_results: bool,
) -> core.Jaxpr:
    """A jaxpr on parts of some of its operands, and on what others are called now.

    Its results are taken apart, too, if `stacked_results`.
    """
    computed = {var for equation in jaxpr.eqns for var in equation.outvars}
    outside = [var for var in dict.fromkeys(variables([*jaxpr.invars, *jaxpr.outvars])) if var not in computed]
    operands: list[core.Atom] = []
    for var in outside:
        operands += parts.get(var, (named(names, var),))

    def run(*values: Any) -> list[Any]:
        rest = iter(values)
        of_operands = {var: _Stack(next(rest) for _ in parts[var]) if var in parts else next(rest) for var in outside}
        results: list[Any] = []
        for result in _evaluated(jaxpr, of_operands, None):
            if isinstance(result, _Stack) and stacked_results:
                results += result.parts
            else:
                results.append(_whole(result))
        return results

    closed = jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in operands))
    if closed.consts:
        raise ValueError("the scan over layers closes over arrays of numbers; give these to the step as arguments")
    equations, results = renamed(closed.jaxpr, operands)
    invars = dict.fromkeys(variables(operands))
    return new_jaxpr(invars, results, equations, closed.jaxpr.effects)


Rematerialised = Callable[[Callable[..., Any]], Callable[..., Any]]


def _evaluated(jaxpr: core.Jaxpr, operand_values: Mapping[core.Var, Any], remat: Rematerialised | None) -> list[Any]:
    """The results of a jaxpr on values, some of which are stacks; `remat` wraps each turn of scans in it."""
    values = dict(operand_values)

    def read(atom: core.Atom) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in jaxpr.eqns:
        operands = [read(atom) for atom in equation.invars]
        if any(isinstance(operand, _Stack) for operand in operands):
            results = _on_stacks(equation, operands, remat)
        else:
            results = bound(equation, operands)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _on_stacks(equation: core.JaxprEqn, operands: Sequence[Any], remat: Rematerialised | None) -> Sequence[Any]:
    inner = body(equation, CHECKPOINTS)
    if _is_scan(equation):
        first = sum(scan_operands(equation.params))
        if any(isinstance(operand, _Stack) for operand in operands[first:]):
            return _turns(equation, [*map(_whole, operands[:first]), *operands[first:]], remat)
    elif inner is not None:
        if equation.primitive.name in CHECKPOINTS:
            options = {name: equation.params[name] for name in ("prevent_cse", "policy")}
            remat = functools.partial(jax.checkpoint, **options)
        return _evaluated(inner, dict(zip(inner.invars, operands, strict=True)), remat)
    elif _is_elementwise(equation):
        count = next(len(operand.parts) for operand in operands if isinstance(operand, _Stack))
        return [_Stack(bound(equation, [_Stack.part(x, n) for x in operands])[0] for n in range(count))]
    elif equation.primitive.name in _REDUCTIONS and len(operands) == 1:
        return [_reduced(equation, operands[0])]
    return bound(equation, [_whole(operand) for operand in operands])


def _turns(equation: core.JaxprEqn, operands: Sequence[Any], remat: Rematerialised | None) -> list[Any]:
    """The turns of a scan one after another: its carried results, then what its turns returned, as stacks."""
    params = equation.params
    constants, carried = scan_operands(params)
    closed, length = params["jaxpr"], params["length"]

    def turn(*values: Any) -> list[Any]:
        return core.eval_jaxpr(closed.jaxpr, closed.consts, *values)

    run = turn if remat is None else remat(turn)
    carry = list(operands[constants : constants + carried])
    returned: list[list[Any]] = [[]] * length
    for n in range(length)[:: -1 if params["reverse"] else 1]:
        results = run(*operands[:constants], *carry, *(_Stack.part(x, n) for x in operands[constants + carried :]))
        carry, returned[n] = list(results[:carried]), list(results[carried:])
    return [*carry, *(_Stack(turn_results) for turn_results in zip(*returned, strict=True))]


def _reduced(equation: core.JaxprEqn, stack: _Stack) -> Any:
    """A reduction of a stack: of each part, and of what that leaves if the parts themselves are reduced."""
    axes = equation.params["axes"]
    inner = tuple(axis - 1 for axis in axes if axis)
    parts = [equation.primitive.bind(part, axes=inner) if inner else part for part in stack.parts]
    if 0 not in axes:
        return _Stack(parts)
    return functools.reduce(_REDUCTIONS[equation.primitive.name], parts)


def _whole(operand: Any) -> Any:
    return jnp.stack(operand.parts) if isinstance(operand, _Stack) else operand

