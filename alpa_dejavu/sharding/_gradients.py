"""Which gradient and which state belong to which parameter: found from what an optimizer's update does with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from jax import core

Pairs = tuple[dict[core.Var, core.Var], dict[core.Var, tuple[core.Var, ...]]]


def variables(atoms: Sequence[core.Atom]) -> list[core.Var]:
    """Those of a jaxpr's operands or results that are no literals."""
    return [atom for atom in atoms if not isinstance(atom, core.Literal)]


def results(jaxpr: core.Jaxpr) -> set[core.Var]:
    """What a jaxpr makes; an operand that it only hands on isn't."""
    return set(variables(jaxpr.outvars)).difference(jaxpr.invars)


def pair_gradients(update: core.Jaxpr, parameters: Collection[core.Var], gradients: Collection[core.Var]) -> Pairs:
    """For each parameter that an update changes its gradient and its state.

    A new parameter that is made of one old parameter and one gradient of its shape tells which belong together. Where
    every new parameter depends on all gradients, as with clipping by the global norm, they are paired by their shapes,
    in order.

    Args:
        update: the optimizer's jaxpr.
        parameters: of the model.
        gradients: results of the backward pass.
    """
    own = [var for var in update.invars if var in parameters]
    sums = [var for var in update.invars if var in gradients]
    sources = _sources(update)
    pairs: dict[core.Var, core.Var] = {}
    states: dict[core.Var, tuple[core.Var, ...]] = {}
    for result in variables(update.outvars):
        reached = sources.get(result, frozenset())
        mine, theirs = _alike(own, reached, result), _alike(sums, reached, result)
        if len(mine) == 1 and len(theirs) == 1 and mine[0] not in pairs:
            pairs[mine[0]] = theirs[0]
            states[mine[0]] = tuple(_alike(update.invars, reached - {*mine, *theirs}, result))
    left = [var for var in sums if var not in pairs.values()]
    for parameter in (var for var in own if var not in pairs):
        match = next((var for var in left if _shape(var) == _shape(parameter)), None)
        if match is not None:
            left.remove(match)
            pairs[parameter] = match
    known = {*own, *sums, *(var for state in states.values() for var in state)}
    rest = [var for var in update.invars if var not in known]
    _deal_states(rest, [var for var in pairs if var not in states], states)
    return pairs, states


def _deal_states(
    rest: Sequence[core.Var], parameters: Sequence[core.Var], states: dict[core.Var, tuple[core.Var, ...]]
) -> None:
    """Gives each parameter its share of the states of its shape."""
    for shape in dict.fromkeys(map(_shape, parameters)):
        alike = [var for var in parameters if _shape(var) == shape]
        own = [var for var in rest if _shape(var) == shape]
        states.update((var, tuple(own[n :: len(alike)])) for n, var in enumerate(alike))


def _shape(var: core.Var) -> tuple[int, ...]:
    return tuple(getattr(var.aval, "shape", ()))


def _alike(candidates: Iterable[core.Var], reached: Collection[core.Var], result: core.Var) -> list[core.Var]:
    return [var for var in candidates if var in reached and _shape(var) == _shape(result)]


def _sources(jaxpr: core.Jaxpr) -> dict[core.Var, frozenset[core.Var]]:
    """For each value the operands that it is made of."""
    found: dict[core.Var, frozenset[core.Var]] = {var: frozenset((var,)) for var in jaxpr.invars}
    for eqn in jaxpr.eqns:
        reached = frozenset().union(*(found.get(var, frozenset()) for var in variables(eqn.invars)))
        found.update(dict.fromkeys(eqn.outvars, reached))
    return found
