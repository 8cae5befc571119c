"""The division of an update, all that a step does after its gradients, among the layers.

An equation belongs to the layer of its largest operand that belongs to one: of gradients and parameters, to begin with,
then of what is made of them. What works up the optimizer's state before it meets a gradient belongs to the layer that
takes its result. A jitted function on several layers' gradients is divided itself. Layers' parts may take from each
other, both ways: all of them make the norm of all gradients, and all take it.
"""

from __future__ import annotations

from collections.abc import Mapping

from jax import core

from alpa_dejavu.layers._jaxprs import inlined, jaxpr_of, live_equations, named, variables


def divide_update(update: core.Jaxpr, owners: Mapping[core.Var, int], num_layers: int) -> tuple[core.Jaxpr | None, ...]:
    """Divides the jaxpr of an optimizer's update among the layers; a layer that has no part in it gets None.

    `owners` has the number of the layer of each gradient and parameter.
    """
    names: dict[core.Var, core.Atom] = {}
    equations, layers = _assigned(update, owners, names)
    wanted = {named(names, var) for var in variables(update.outvars)}
    alive = live_equations(equations, wanted)
    equations = [equation for equation, is_alive in zip(equations, alive, strict=True) if is_alive]
    layers = [layer for layer, is_alive in zip(layers, alive, strict=True) if is_alive]
    _assign_rest(equations, layers)
    makers = {var: n for equation, n in zip(equations, layers, strict=True) for var in equation.outvars}
    for equation, n in zip(equations, layers, strict=True):
        wanted.update(var for var in variables(equation.invars) if makers.get(var, n) != n)
    divided: list[core.Jaxpr | None] = [None] * num_layers
    for layer in set(layers):
        own = [equation for equation, n in zip(equations, layers, strict=True) if n == layer]
        divided[layer] = jaxpr_of(own, [var for equation in own for var in equation.outvars if var in wanted])
    return tuple(divided)


def _assigned(
    update: core.Jaxpr, given_owners: Mapping[core.Var, int], names: dict[core.Var, core.Atom]
) -> tuple[list[core.JaxprEqn], list[int]]:
    """The equations, calls on several layers' arrays inlined, and the layer of each; -1: not known yet."""
    owners = dict(given_owners)

    def sizes(equation: core.JaxprEqn) -> list[tuple[int, int]]:
        return [(var.aval.size, owners[var]) for var in variables(equation.invars) if var in owners]

    def is_shared(equation: core.JaxprEqn) -> bool:
        return len({layer for size, layer in sizes(equation) if size > 1}) > 1

    equations: list[core.JaxprEqn] = []
    layers: list[int] = []
    for equation in inlined(update.eqns, names, is_shared):
        layer = max(sizes(equation), default=(0, -1))[1]
        equations.append(equation)
        layers.append(layer)
        if layer >= 0:
            owners.update((var, layer) for var in equation.outvars)
    return equations, layers


def _assign_rest(equations: list[core.JaxprEqn], layers: list[int]) -> None:
    """Gives each equation that has no layer yet the first layer that takes one of its results.

    Equations whose results no layer takes, such as a count of steps, go to the first layer that has any equations.
    """
    first = min((layer for layer in layers if layer >= 0), default=0)
    takers: dict[core.Var, int] = {}
    for n in range(len(equations) - 1, -1, -1):
        if layers[n] < 0:
            layers[n] = min((takers[var] for var in equations[n].outvars if var in takers), default=first)
        for var in variables(equations[n].invars):
            takers[var] = min(layers[n], takers.get(var, layers[n]))
