"""A layered step with its attention as fused kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from jax import core

from alpa_dejavu._util.collector import collector_paused
from alpa_dejavu.layers._jaxprs import live_equations
from alpa_dejavu.layers.attention._bodies import Replacement, replacements
from alpa_dejavu.layers.attention._equations import Equations, variables_of
from alpa_dejavu.layers.attention._pairs import pairs_of
from alpa_dejavu.problem import checks

if TYPE_CHECKING:
    from alpa_dejavu.layers._cut import LayeredStep

_CHOICES = ("plain", "fused")


def with_attention(layered: LayeredStep, attention: str = "plain") -> LayeredStep:
    """Returns a layered step in whose jaxprs each attention that a fused kernel computes is one equation.

    Its scores and probabilities aren't kept for the backward pass, which computes them again from queries, keys and a
    number for each row. Attention that isn't whole in one layer, or whose scores are used for something else, stays as
    it is. So does a step with "plain".

    Args:
        layered: the step, cut into layers.
        attention: how attention that is written out is computed: "plain" as XLA compiles its operations, or "fused".

    Raises:
        ValueError: `attention` is something else.
    """
    checks.one_of("step", "attention", attention, _CHOICES)
    if attention == "plain":
        return layered
    passes = [*layered.forward, *reversed(layered.backward)]
    with collector_paused():
        left = {var for update in layered.updates if update is not None for var in update.invars}
        equations = Equations(passes, left | layered.results, layered.constants)
        pairs = pairs_of(equations, len(layered.forward))
        found = [one for pair in pairs for one in replacements(equations, pair)]
        if not found:
            return layered
        made = _rewritten(equations, found)
    number = len(layered.forward)
    return dataclasses.replace(layered, forward=tuple(made[:number]), backward=tuple(reversed(made[number:])))


def _rewritten(equations: Equations, found: Sequence[Replacement]) -> list[core.Jaxpr]:
    """The passes with kernels in place of what they replace, without what is then not needed any more."""
    needed = set(equations.left)
    made: list[core.Jaxpr] = []
    for number in range(len(equations.rows) - 1, -1, -1):
        jaxpr = equations.passes[number]
        here = [one for one in found if one.number == number]
        if here or not needed.issuperset(variables_of(jaxpr.outvars)):
            jaxpr = _pruned(jaxpr, _ordered(equations, number, here), needed, equations.closed)
        needed.update(jaxpr.invars)
        made.append(jaxpr)
    return made[::-1]


def _ordered(equations: Equations, number: int, found: Sequence[Replacement]) -> list[core.JaxprEqn]:
    """A pass's equations and kernels, each after what it takes, and otherwise in the order of the pass.

    A kernel stands where the last of its operands has been made.
    """
    replaced = frozenset().union(*(one.replaced for one in found))
    row = equations.rows[number]
    kept = [((n, 0), equation) for n, equation in enumerate(row) if (number, n) not in replaced]
    for one in found:
        places = [equations.makers.get(var, (-1, -1)) for var in variables_of(one.equation.invars)]
        kept.append(((max((n for p, n in places if p == number), default=-1), 1), one.equation))
    items = [equation for _, equation in sorted(kept, key=lambda item: item[0])]
    makers = {var: n for n, equation in enumerate(items) for var in equation.outvars}
    order: dict[int, None] = {}
    most = sum(len(equation.invars) + 1 for equation in items)
    for first in range(len(items)):
        stack = [first]
        while stack:
            if len(stack) > most:
                raise RuntimeError("kernels of attention wait for each other; plan with attention 'plain'")
            waits = [makers[var] for var in variables_of(items[stack[-1]].invars) if var in makers]
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
    made = {var for equation in equations for var in equation.outvars}
    results = [atom for atom in jaxpr.outvars if not isinstance(atom, core.Var) or atom in needed]
    results += [var for equation in equations for var in equation.outvars if var in needed and var not in results]
    alive = live_equations(equations, results)
    kept = [equation for equation, is_alive in zip(equations, alive, strict=True) if is_alive]
    taken = dict.fromkeys(variables_of([*(atom for one in kept for atom in one.invars), *results]))
    used = [var for var in taken if var not in made]
    constvars = [var for var in used if var in closed or var in jaxpr.constvars]
    before = [var for var in jaxpr.invars if var in taken]
    invars = [var for var in dict.fromkeys([*before, *used]) if var not in constvars]
    effects = frozenset().union(*(one.effects for one in kept))
    return core.Jaxpr(constvars, invars, results, kept, effects)
