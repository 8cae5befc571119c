"""Which gradient and which state belong to which parameter: found from what an optimizer's update does with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import final

from jax import core

from alpa_dejavu.layers.features.flatten import Flattener, Value
from alpa_dejavu.layers.features.structure import structure, variables

Pairs = tuple[dict[core.Var, core.Var], dict[core.Var, tuple[core.Var, ...]]]


def results(jaxpr: core.Jaxpr) -> set[core.Var]:
    """Returns the result variables that a jaxpr makes, without operands that it only hands on."""
    return set(variables(jaxpr.outvars)).difference(jaxpr.invars)


@final
class Groups:
    """A grouping of the operands of optimizer updates: a parameter, its gradient and its state are in one group.

    Operands are in one group if an array is computed from both; scalars don't count, since all parameters depend on the
    norm of all gradients. Updates that are alike are looked at once.
    """

    def __init__(self) -> None:
        self._known: dict[int, list[list[int]]] = {}

    def of(self, update: core.Jaxpr) -> list[list[core.Var]]:
        """Returns the array operands of an optimizer's update in groups: a parameter, its gradient, its state.

        Each group has the order of the operands.
        """
        number = structure(update)
        if number not in self._known:
            self._known[number] = _groups(update)
        return [[update.invars[place] for place in group] for group in self._known[number]]


def _groups(update: core.Jaxpr) -> list[list[int]]:
    inputs = [Value(var.aval) for var in update.invars]
    made_of: dict[Value, frozenset[int]] = {
        value: frozenset((place,)) for place, value in enumerate(inputs) if value.shape
    }
    root = list(range(len(inputs)))

    def find(place: int) -> int:
        while root[place] != place:
            root[place] = place = root[root[place]]
        return place

    flat = Flattener()
    flat.walk(update, inputs)
    for step in flat.steps:
        reached = frozenset().union(*(made_of.get(value, frozenset()) for value in step.inputs))
        for value in step.outputs:
            if reached and value.shape:
                made_of[value] = reached
                first, *others = map(find, reached)
                for other in others:
                    root[find(other)] = find(first)
    found: dict[int, list[int]] = {}
    for place, value in enumerate(inputs):
        if value.shape:
            found.setdefault(find(place), []).append(place)
    return list(found.values())


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Roles:
    """The variables of a train step that are known to be parameters, gradients, or neither of them nor optimizer state.

    Attributes:
        parameters: the parameters of the model.
        gradients: the results of the backward passes.
        others: all else that the step computes itself, which therefore isn't optimizer state.
        pairs: for each parameter its gradients, one from each layer that uses it; None where they aren't known.
    """

    parameters: Collection[core.Var]
    gradients: Collection[core.Var]
    others: Collection[core.Var]
    pairs: Mapping[core.Var, Collection[core.Var]] | None = None


def pair_gradients(
    groups: Iterable[Sequence[core.Var]], roles: Roles, own: Iterable[core.Var], made: Collection[core.Var]
) -> Pairs:
    """Returns two dictionaries for a layer: each trained parameter's gradient, and its optimizer state's variables.

    Where an update works on several parameters as one, gradients and states are dealt out by shapes, in order.

    Args:
        groups: the operands of the layer's update in groups of a parameter, its gradient and its state.
        roles: which variables are known to be parameters or gradients, or to be no optimizer state.
        own: the layer's parameters, in order.
        made: the results of the layer's backward pass.
    """
    pairs: dict[core.Var, core.Var] = {}
    states: dict[core.Var, tuple[core.Var, ...]] = {}
    if roles.pairs is not None:
        for parameter in own:
            pairs.update((parameter, var) for var in roles.pairs.get(parameter, ()) if var in made)
    for group in groups:
        sums = [var for var in group if var in roles.gradients and var in made]
        if roles.pairs is None:
            pairs.update(_by_shape([var for var in group if var in roles.parameters], sums))
        mine = [parameter for parameter, gradient in pairs.items() if gradient in sums or parameter in group]
        rest = [
            var for var in group
            if var not in roles.parameters and var not in roles.gradients and var not in roles.others
        ]  # fmt: skip
        states.update(_dealt(rest, mine))
    return pairs, {parameter: states.get(parameter, ()) for parameter in pairs}


def _by_shape(parameters: Sequence[core.Var], gradients: Sequence[core.Var]) -> dict[core.Var, core.Var]:
    left, found = list(gradients), {}
    for parameter in parameters:
        match = next((var for var in left if _shape(var) == _shape(parameter)), None)
        if match is not None:
            left.remove(match)
            found[parameter] = match
    return found


def _dealt(rest: Sequence[core.Var], parameters: Sequence[core.Var]) -> dict[core.Var, tuple[core.Var, ...]]:
    """Gives each parameter its share of the states: those of its shape, and the largest one those of no one's."""
    if not parameters:
        return {}
    found: dict[core.Var, tuple[core.Var, ...]] = {}
    for shape in dict.fromkeys(map(_shape, parameters)):
        alike = [var for var in parameters if _shape(var) == shape]
        own = [var for var in rest if _shape(var) == shape]
        found.update((var, tuple(own[n :: len(alike)])) for n, var in enumerate(alike))
    dealt = {var for own in found.values() for var in own}
    largest = max(parameters, key=lambda var: int(var.aval.size))
    found[largest] += tuple(var for var in rest if var not in dealt)
    return found


def _shape(var: core.Var) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))
