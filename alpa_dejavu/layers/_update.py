"""The division of an update, all that a step does after its gradients, among the layers.

An equation belongs to the layer of its largest operand that belongs to one: of gradients and parameters, to begin with,
then of what is made of them. What works up the optimizer's state before it meets a gradient belongs to the layer that
takes its result. A jitted function on several layers' gradients is divided itself. Layers' parts may take from each
other, both ways: all of them make the norm of all gradients, and all take it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import final

from jax import core

from alpa_dejavu.layers._jaxprs import MARKER, body, jaxpr_of, live_equations, named, renamed


def divide_update(update: core.Jaxpr, owners: Mapping[core.Var, int], num_layers: int) -> tuple[core.Jaxpr | None, ...]:
    """Divides the jaxpr of an optimizer's update among the layers; a layer that has no part in it gets None.

    Args:
        update: all that the train step does after its gradients.
        owners: for each gradient and parameter the number of its layer.
        num_layers: how many layers there are.
    """
    division = _Division(owners)
    names: dict[core.Var, core.Atom] = {}
    division.walk(update.eqns, names)
    wanted = {named(names, atom) for atom in update.outvars if isinstance(atom, core.Var)}
    division.leave_out_dead(wanted)
    division.assign_rest()
    layers, equations = division.layers, division.equations
    makers = {var: n for equation, n in zip(equations, layers, strict=True) for var in equation.outvars}
    for equation, n in zip(equations, layers, strict=True):
        wanted.update(a for a in equation.invars if isinstance(a, core.Var) and makers.get(a, n) != n)
    divided: list[core.Jaxpr | None] = [None] * num_layers
    for layer in set(layers):
        own = [equation for equation, n in zip(equations, layers, strict=True) if n == layer]
        divided[layer] = jaxpr_of(own, [var for equation in own for var in equation.outvars if var in wanted])
    return tuple(divided)


@final
class _Division:
    """The equations, flattened as far as they must be, and the layer of each; -1: not known yet."""

    def __init__(self, owners: Mapping[core.Var, int]) -> None:
        self.equations: list[core.JaxprEqn] = []
        self.layers: list[int] = []
        self._owners = dict(owners)

    def walk(self, equations: Iterable[core.JaxprEqn], names: dict[core.Var, core.Atom]) -> None:
        """Appends equations of an optimizer's update to a list, each with the layer that it belongs to, if known.

        Calls of jitted functions on several layers' arrays are inlined.

        Args:
            equations: the equations, in order.
            names: maps variables to those that stand for them; results of inlined calls are added to it.
        """
        for equation in equations:
            equation = equation.replace(invars=[named(names, atom) for atom in equation.invars])
            owners = [
                (atom.aval.size, self._owners[atom])
                for atom in equation.invars
                if isinstance(atom, core.Var) and atom in self._owners
            ]
            called = body(equation)
            if equation.primitive.name == MARKER:
                names.update(zip(equation.outvars, equation.invars, strict=False))
            elif called is not None and len({layer for size, layer in owners if size > 1}) > 1:
                inner, results = renamed(called, equation.invars)
                within: dict[core.Var, core.Atom] = {}
                self.walk(inner, within)
                names.update(zip(equation.outvars, (named(within, atom) for atom in results), strict=True))
            else:
                layer = max(owners)[1] if owners else -1
                self.equations.append(equation)
                self.layers.append(layer)
                if layer >= 0:
                    self._owners.update((var, layer) for var in equation.outvars)

    def leave_out_dead(self, wanted: Collection[core.Atom]) -> None:
        """Leaves out the equations of an update whose results neither the train step nor another equation takes.

        `wanted` are the results that the step takes.
        """
        alive = live_equations(self.equations, wanted)
        self.layers = [layer for layer, is_alive in zip(self.layers, alive, strict=True) if is_alive]
        self.equations = [equation for equation, is_alive in zip(self.equations, alive, strict=True) if is_alive]

    def assign_rest(self) -> None:
        """Gives each equation of an update that has no layer yet the first layer that takes one of its results.

        Equations whose results no layer takes, such as a count of steps, go to the first layer that has any equations.
        """
        first = min((layer for layer in self.layers if layer >= 0), default=0)
        takers: dict[core.Var, int] = {}
        for n in range(len(self.equations) - 1, -1, -1):
            equation = self.equations[n]
            if self.layers[n] < 0:
                self.layers[n] = min((takers[var] for var in equation.outvars if var in takers), default=first)
            for atom in equation.invars:
                if isinstance(atom, core.Var):
                    takers[atom] = min(self.layers[n], takers.get(atom, self.layers[n]))
