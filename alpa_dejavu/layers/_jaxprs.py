"""Small operations on jaxprs: rows of equations as a jaxpr, the same with other variables, calls inlined."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from jax import core

MARKER = "pipeline_marker"


def jaxpr_of(equations: Sequence[core.JaxprEqn], results: Iterable[core.Atom]) -> core.Jaxpr:
    """Builds a jaxpr from equations and results; variables that no equation makes become its operands, in order."""
    made: set[core.Var] = set()
    taken: dict[core.Var, None] = {}
    effects: set[core.Effect] = set()
    for equation in equations:
        for atom in equation.invars:
            if isinstance(atom, core.Var) and atom not in made:
                taken[atom] = None
        made.update(equation.outvars)
        effects |= equation.effects
    return core.Jaxpr((), tuple(taken), tuple(results), tuple(equations), effects)


def live_equations(equations: Sequence[core.JaxprEqn], wanted: Iterable[core.Atom]) -> list[bool]:
    """Returns for each of a jaxpr's equations whether a wanted variable depends on its results, or it has effects."""
    needed = {atom for atom in wanted if isinstance(atom, core.Var)}
    alive = []
    for equation in reversed(equations):
        alive.append(bool(equation.effects) or any(var in needed for var in equation.outvars))
        if alive[-1]:
            needed.update(atom for atom in equation.invars if isinstance(atom, core.Var))
    return alive[::-1]


def renamed(jaxpr: core.Jaxpr, operands: Sequence[core.Atom]) -> tuple[list[core.JaxprEqn], list[core.Atom]]:
    """Returns a jaxpr's equations and results on other operands, with new variables for all that it makes."""
    names: dict[core.Var, core.Atom] = dict(zip(jaxpr.invars, operands, strict=True))
    equations = []
    for equation in jaxpr.eqns:
        results = [_new(var) for var in equation.outvars]
        equations.append(equation.replace(invars=[named(names, atom) for atom in equation.invars], outvars=results))
        names.update(zip(equation.outvars, results, strict=True))
    return equations, [named(names, atom) for atom in jaxpr.outvars]


def named(names: Mapping[core.Var, core.Atom], atom: core.Atom) -> core.Atom:
    """Returns the atom that stands for an atom of a jaxpr by the mapping `names`; the atom itself if it isn't in it."""
    return atom if isinstance(atom, core.Literal) else names.get(atom, atom)


def is_in(atom: core.Atom, variables: Collection[core.Var]) -> bool:
    """Returns whether an atom of a jaxpr is one of some variables; a literal never is."""
    return isinstance(atom, core.Var) and atom in variables


def new_variable(aval: core.AbstractValue) -> core.Var:
    """Makes a jaxpr variable of the given abstract value that is equal to no other variable."""
    return core.Var("", aval)


def equation_of(
    primitive: core.Primitive, operands: Sequence[core.Atom], result: core.AbstractValue, **params: Any
) -> core.JaxprEqn:
    """Makes a jaxpr equation whose only result is a new variable."""
    return core.new_jaxpr_eqn(list(operands), [new_variable(result)], primitive, params, core.no_effects)


def inlined(
    equations: Iterable[core.JaxprEqn],
    names: dict[core.Var, core.Atom],
    wanted: Callable[[core.JaxprEqn], bool],
) -> list[core.JaxprEqn]:
    """Returns a jaxpr's equations with some calls of jitted functions inlined, and without Alpa's pipeline markers.

    Args:
        equations: the equations.
        names: maps variables to what stands for them; the results of inlined calls and of markers are added to it.
        wanted: whether a call is to be inlined.
    """
    flat: list[core.JaxprEqn] = []
    for equation in equations:
        equation = equation.replace(invars=[named(names, atom) for atom in equation.invars])
        called = body(equation)
        if equation.primitive.name == MARKER:
            names.update(zip(equation.outvars, equation.invars, strict=False))
        elif called is None or not wanted(equation):
            flat.append(equation)
        else:
            inner, results = renamed(called, equation.invars)
            within: dict[core.Var, core.Atom] = {}
            flat += inlined(inner, within, wanted)
            names.update(zip(equation.outvars, (named(within, atom) for atom in results), strict=True))
    return flat


def body(equation: core.JaxprEqn) -> core.Jaxpr | None:
    """Returns the jaxpr that a jitted function's call runs on its operands; None if the equation is no such call."""
    if equation.primitive.name not in ("pjit", "closed_call", "core_call", "custom_jvp_call"):
        return None
    called = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
    if isinstance(called, core.ClosedJaxpr):
        return None if called.consts else called.jaxpr
    return called


def holds(equation: core.JaxprEqn, primitive: core.Primitive) -> bool:
    """Returns whether an equation, or any equation nested in it, applies a given primitive."""
    return equation.primitive is primitive or any(
        holds(inner, primitive) for jaxpr in core.jaxprs_in_params(equation.params) for inner in jaxpr.eqns
    )


def _new(var: core.Var) -> core.Var:
    return var if isinstance(var, core.DropVar) else new_variable(var.aval)
