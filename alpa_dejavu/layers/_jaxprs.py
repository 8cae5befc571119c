"""Small operations on jaxprs: rows of equations as a jaxpr, the same with other variables, calls inlined."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from alpa_dejavu._util.jax_api import ClosedJaxpr, core, new_jaxpr, new_variable

MARKER = "pipeline_marker"
_JITTED = ("pjit", "jit", "closed_call", "core_call", "eval_jaxpr", "custom_jvp_call")
CHECKPOINTS = ("checkpoint", "remat2")


def variables(atoms: Iterable[core.Atom]) -> list[core.Var]:
    """Returns the variables among a jaxpr's operands or results, without the literals."""
    return [atom for atom in atoms if isinstance(atom, core.Var)]


def shape_of(atom: core.Atom) -> tuple[int, ...]:
    """Returns the shape of an atom of a jaxpr."""
    return tuple(getattr(atom.aval, "shape", ()))


def is_in(atom: core.Atom, chosen: Collection[core.Var]) -> bool:
    """Returns whether an atom of a jaxpr is one of some variables; a literal never is."""
    return isinstance(atom, core.Var) and atom in chosen


def jaxpr_of(equations: Sequence[core.JaxprEqn], results: Iterable[core.Atom]) -> core.Jaxpr:
    """Builds a jaxpr from equations and results; variables that no equation makes become its operands, in order."""
    computed: set[core.Var] = set()
    operands: dict[core.Var, None] = {}
    effects: set[core.Effect] = set()
    for equation in equations:
        operands.update((var, None) for var in variables(equation.invars) if var not in computed)
        computed.update(equation.outvars)
        effects |= equation.effects
    return new_jaxpr(operands, results, equations, effects)


def live_equations(equations: Sequence[core.JaxprEqn], wanted: Iterable[core.Atom]) -> list[bool]:
    """Returns for each of a jaxpr's equations whether a wanted variable depends on its results, or it has effects."""
    needed = set(variables(wanted))
    alive = []
    for equation in reversed(equations):
        alive.append(bool(equation.effects) or not needed.isdisjoint(equation.outvars))
        if alive[-1]:
            needed.update(variables(equation.invars))
    return alive[::-1]


def derived_from(equations: Iterable[core.JaxprEqn], sources: Iterable[core.Var]) -> frozenset[core.Var]:
    """Returns the sources, and all variables of a jaxpr's equations that are computed from them."""
    derived = set(sources)
    for equation in equations:
        if not derived.isdisjoint(variables(equation.invars)):
            derived.update(equation.outvars)
    return frozenset(derived)


def renamed(jaxpr: core.Jaxpr, operands: Sequence[core.Atom]) -> tuple[list[core.JaxprEqn], list[core.Atom]]:
    """Returns a jaxpr's equations and results on other operands, with new variables for all that it computes."""
    names: dict[core.Var, core.Atom] = dict(zip(jaxpr.invars, operands, strict=True))
    equations = []
    for equation in jaxpr.eqns:
        results = [v if isinstance(v, core.DropVar) else new_variable(v.aval) for v in equation.outvars]
        operands = [named(names, atom) for atom in equation.invars]
        equations.append(equation.replace(invars=operands, outvars=results))
        names.update(zip(equation.outvars, results, strict=True))
    return equations, [named(names, atom) for atom in jaxpr.outvars]


_bodies: weakref.WeakKeyDictionary[core.Jaxpr, ClosedJaxpr] = weakref.WeakKeyDictionary()


def calling(jaxpr: core.Jaxpr, operands: Sequence[core.Atom]) -> tuple[list[core.JaxprEqn], list[core.Atom]]:
    """Returns a call of a jaxpr's equations on other operands, as a list of one equation or none, and the jaxpr's
    results. What it computes are new variables; operands and literals that it only hands on stay what they are.
    """
    names: dict[core.Var, core.Atom] = dict(zip(jaxpr.invars, operands, strict=True))
    if jaxpr not in _bodies:
        computed = dict.fromkeys(var for var in variables(jaxpr.outvars) if var not in names)
        _bodies[jaxpr] = ClosedJaxpr(jaxpr_of(jaxpr.eqns, computed), ())
    closed = _bodies[jaxpr]
    own_operands = [names[var] for var in closed.jaxpr.invars]
    results = [new_variable(var.aval) for var in closed.jaxpr.outvars]
    names.update(zip(closed.jaxpr.outvars, results, strict=True))
    params, effects = {"call_jaxpr": closed}, closed.jaxpr.effects
    call = core.new_jaxpr_eqn(own_operands, results, core.closed_call_p, params, effects)
    return [call] if jaxpr.eqns else [], [named(names, atom) for atom in jaxpr.outvars]


def named(names: Mapping[core.Var, core.Atom], atom: core.Atom) -> core.Atom:
    """Returns the atom that stands for an atom of a jaxpr by the mapping `names`; the atom itself if it isn't in it."""
    return atom if isinstance(atom, core.Literal) else names.get(atom, atom)


def on_names(equation: core.JaxprEqn, names: Mapping[core.Var, core.Atom]) -> core.JaxprEqn:
    """Returns an equation on what stands for its operands by the mapping `names`."""
    return equation.replace(invars=[named(names, atom) for atom in equation.invars])


def equation_of(
    primitive: core.Primitive, operands: Sequence[core.Atom], result: core.AbstractValue, **params: Any
) -> core.JaxprEqn:
    """Makes a jaxpr equation whose only result is a new variable."""
    return core.new_jaxpr_eqn(list(operands), [new_variable(result)], primitive, params, core.no_effects)


Opened = tuple[list[core.JaxprEqn], list[core.Atom]]
"""The equations that stand for a call, and its results."""


def inlined(
    equations: Iterable[core.JaxprEqn],
    names: dict[core.Var, core.Atom],
    wanted: Callable[[core.JaxprEqn], bool],
    opened: Callable[[core.JaxprEqn, core.Jaxpr], Opened] = lambda equation, body: renamed(body, equation.invars),
) -> Iterator[core.JaxprEqn]:
    """Yields a jaxpr's equations with some calls of jitted functions, and checkpoints, inlined, and without Alpa's
    pipeline markers.

    `names` maps variables to what stands for them; the results of inlined calls and of markers are added to it. A call
    is asked for, by `wanted`, when all equations before it have been yielded; `opened` is then given it with its jaxpr.
    """
    for equation in equations:
        equation = on_names(equation, names)
        function = body(equation, CHECKPOINTS)
        if equation.primitive.name == MARKER:
            names.update(zip(equation.outvars, equation.invars, strict=False))
        elif function is None or not wanted(equation):
            yield equation
        else:
            inner, results = opened(equation, function)
            within: dict[core.Var, core.Atom] = {}
            yield from inlined(inner, within, wanted, opened)
            names.update(zip(equation.outvars, (named(within, atom) for atom in results), strict=True))


def called(equation: core.JaxprEqn) -> tuple[core.Jaxpr | None, Sequence[Any]]:
    """Returns the jaxpr that a call-like equation runs once on its operands, and the arrays that this closes over; None
    if the equation is no call, but a loop, a branch, a kernel of attention or a plain operation.
    """
    if equation.primitive.name not in ("scan", "while", "cond", "attention"):
        sizes = len(equation.invars), len(equation.outvars)
        for value in equation.params.values():
            jaxpr, arrays = (value.jaxpr, value.consts) if isinstance(value, ClosedJaxpr) else (value, ())
            if isinstance(jaxpr, core.Jaxpr) and (len(jaxpr.invars), len(jaxpr.outvars)) == sizes:
                return jaxpr, arrays
    return None, ()


def body(equation: core.JaxprEqn, also: Collection[str] = ()) -> core.Jaxpr | None:
    """Returns what a jitted function's call (or one `also` named) runs on its operands, if it closes over no arrays."""
    if equation.primitive.name not in (*_JITTED, *also):
        return None
    jaxpr, arrays = called(equation)
    return None if arrays else jaxpr


_primitives: weakref.WeakKeyDictionary[core.Jaxpr, frozenset[str]] = weakref.WeakKeyDictionary()


def primitives_in(equation: core.JaxprEqn) -> frozenset[str]:
    """Returns the names of the primitives of an equation and of all equations nested in it."""
    names = {equation.primitive.name}
    for jaxpr in core.jaxprs_in_params(equation.params):
        if jaxpr not in _primitives:
            _primitives[jaxpr] = frozenset().union(*map(primitives_in, jaxpr.eqns))
        names |= _primitives[jaxpr]
    return frozenset(names)
