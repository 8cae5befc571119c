"""The equations of a step's passes with calls inlined, and who makes and takes each variable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, final

from jax import lax

from alpa_dejavu._util.jax_api import core, new_jaxpr, new_variable
from alpa_dejavu.layers._jaxprs import called, equation_of, named, on_names, variables

Location = tuple[int, int]
"""The number of a pass, and of an equation within it."""


@final
class Equations:
    """The equations of several jaxprs that share variables, the passes of a step, in the order in which they run.

    Args:
        passes: the jaxprs.
        left: variables that something outside of the passes takes, as the optimizer's update does.
        values: the numbers of operands that are always the same.

    Attributes:
        rows: each pass's equations; calls are inlined, but the results of the jaxprs are the same variables.
        makers, takers: for each variable the equation that makes it, and those that take it.
        left: the variables that something outside of the passes takes.
        values: the numbers of variables that are always the same.
        closed: those of these variables that aren't operands: called functions close over them.
        constants: the variables that are computed from no operand of any pass, as causal masks are.
    """

    def __init__(
        self,
        passes: Sequence[core.Jaxpr],
        left: Iterable[core.Var] = (),
        values: Mapping[core.Var, Any] | None = None,
    ) -> None:
        self.passes = tuple(passes)
        self.closed: dict[core.Var, Any] = {}
        self.rows: list[list[core.JaxprEqn]] = []
        for jaxpr in passes:
            row: list[core.JaxprEqn] = []
            for equation in jaxpr.eqns:
                _open(equation, row, self.closed)
            self.rows.append(row)
        self.makers: dict[core.Var, Location] = {}
        self.takers: dict[core.Var, list[Location]] = {}
        for p, equations in enumerate(self.rows):
            for n, equation in enumerate(equations):
                self.makers.update((var, (p, n)) for var in equation.outvars)
                for var in dict.fromkeys(variables(equation.invars)):
                    self.takers.setdefault(var, []).append((p, n))
        operands = {var for jaxpr in passes for var in jaxpr.invars}
        self.left = {var for jaxpr in passes for var in variables(jaxpr.outvars) if var not in operands}.union(left)
        self.values = {**(values or {}), **self.closed}
        self.constants: set[core.Var] = set()
        for equation in (equation for row in self.rows for equation in row):
            if not equation.effects and self.constants.issuperset(variables(equation.invars)):
                self.constants.update(equation.outvars)

    def at(self, place: Location) -> core.JaxprEqn:
        """Returns the equation at a place."""
        return self.rows[place[0]][place[1]]

    def maker(self, atom: core.Atom) -> core.JaxprEqn | None:
        """Returns the equation that makes an atom of a jaxpr; None for literals and operands from outside."""
        place = self.makers.get(atom) if isinstance(atom, core.Var) else None
        return None if place is None else self.at(place)

    def body(
        self,
        places: Collection[Location],
        operands: Sequence[core.Var],
        results: Sequence[core.Var],
        first: core.Var,
        names: Mapping[core.Var, core.Var] | None = None,
    ) -> core.Jaxpr:
        """Builds the jaxpr of those of some equations, by their places, that its results depend on, with all that is
        constant. Its first operands are given, used or not; what else its equations take becomes further ones. What
        `first` depends on is computed first, and `names` maps variables that equations take to what stands for them.
        """
        names = names or {}
        ahead, _ = self._needed(places, operands, [first], names)
        needed, others = self._needed(places, operands, results, names)
        order = [*sorted(ahead & needed), *sorted(needed - ahead)]
        equations = [self.at(place) for place in order]
        if names:
            equations = [on_names(equation, names) for equation in equations]
        return new_jaxpr(dict.fromkeys([*operands, *others]), results, equations)

    def _needed(
        self,
        places: Collection[Location],
        operands: Sequence[core.Var],
        results: Sequence[core.Var],
        names: Mapping[core.Var, core.Var],
    ) -> tuple[set[Location], list[core.Var]]:
        """The places of the equations that results depend on, and what these take from elsewhere, in order."""
        needed: set[Location] = set()
        others: dict[core.Var, None] = {}
        stack = list(reversed(results))
        while stack:
            var = stack.pop()
            place = self.makers.get(var)
            if place is None or var in operands or not (place in places or var in self.constants):
                others[var] = None
            elif place not in needed:
                needed.add(place)
                stack += [names.get(v, v) for v in reversed(variables(self.at(place).invars))]
        return needed, list(others)


def _open(equation: core.JaxprEqn, row: list[core.JaxprEqn], closed: dict[core.Var, Any]) -> None:
    """Appends an equation to a row, or those of what it calls, whose arrays `closed` is told; results stay the same
    variables.
    """
    inner, arrays = called(equation)
    if inner is None:
        row.append(equation)
        return
    names: dict[core.Var, core.Atom] = dict(zip(inner.invars, equation.invars, strict=True))
    for var, array in zip(inner.constvars, arrays, strict=True):
        names[var] = new_variable(var.aval)
        closed[names[var]] = array
    computed = {var for step in inner.eqns for var in step.outvars}
    of_call: dict[core.Var, core.Var] = {}
    copies = []
    for atom, result in zip(inner.outvars, equation.outvars, strict=True):
        if isinstance(result, core.DropVar):
            continue
        if isinstance(atom, core.Var) and atom in computed and atom not in of_call:
            of_call[atom] = result
        else:
            copies.append((atom, result))
    for step in inner.eqns:
        results = [v if isinstance(v, core.DropVar) else of_call.get(v) or new_variable(v.aval) for v in step.outvars]
        replaced = on_names(step, names).replace(outvars=results)
        names.update(zip(step.outvars, results, strict=True))
        _open(replaced, row, closed)
    for atom, result in copies:
        copy = equation_of(lax.copy_p, [named(names, atom)], result.aval)
        row.append(copy.replace(outvars=[result]))
