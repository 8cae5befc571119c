"""The layers' forward and backward jaxprs, tied together: each layer's parts on the variables that it really has."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import final

import jax.numpy as jnp
import numpy as np
from jax import core, lax
from jax.interpreters import ad

from alpa_dejavu.layers._derivative import Alike, Parts, linear, parts
from alpa_dejavu.layers._jaxprs import equation_of, jaxpr_of, named, new_variable, renamed


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """All layers, forward then backward.

    Attributes:
        forward: of each layer; its results are what later layers, the backward ones or the step take.
        backward: of each layer, in the order of the forward ones; without equations where nothing is to be done.
        accumulators: operands of the backward layers that gradients are added to, and the results of that.
        gradients: for each trained operand that has any: (layer, accumulated gradient) of each layer that uses it.
        names: what the loss's variables are called in the forward layers.
    """

    forward: tuple[core.Jaxpr, ...]
    backward: tuple[core.Jaxpr, ...]
    accumulators: Mapping[core.Var, core.Var]
    gradients: Mapping[core.Var, list[tuple[int, core.Var]]]
    names: Mapping[core.Var, core.Atom]


def chain_of(rows: Sequence[core.Jaxpr], trained: Collection[core.Var], loss: core.Atom, remat: bool) -> Chain:
    """Differentiates a loss layer by layer.

    Args:
        rows: the layers of the loss; what one makes and another takes is the same variable.
        trained: the operands that the loss is differentiated by.
        loss: which of the layers' results is the loss.
        remat: whether the backward layers compute forward again.
    """
    split = _split(rows, trained, loss, remat)
    names: dict[core.Var, core.Atom] = {}
    forward, kept = [], []
    for row, part in zip(rows, split, strict=True):
        operands = [named(names, var) for var in row.invars]
        equations, results = renamed(row if part is None else part.forward, operands)
        own = {var for equation in equations for var in equation.outvars}
        names.update(zip(row.outvars, results[: len(row.outvars)], strict=True))
        kept.append(operands if remat else results[len(row.outvars) :])
        forward.append(jaxpr_of(equations, dict.fromkeys(a for a in results if _is_in(a, own))))
    back = _Backward(trained, loss)
    backward = [back.layer(n, rows[n], split[n], kept[n]) for n in range(len(rows) - 1, -1, -1)]
    return Chain(tuple(forward), tuple(reversed(backward)), back.accumulators, back.gradients, names)


def _split(
    rows: Sequence[core.Jaxpr], trained: Collection[core.Var], loss: core.Atom, remat: bool
) -> list[Parts | None]:
    """Each layer's parts, None where nothing is to be differentiated."""
    active = {var for var in trained if jnp.issubdtype(var.aval.dtype, np.inexact)}
    masks = []
    for row in rows:
        masks.append(tuple(var in active for var in row.invars))
        if any(masks[-1]):
            depends = linear(Alike(row), masks[-1]).active
            active.update(var for var, on in zip(row.outvars, depends, strict=True) if on)
    pulled = {loss} & active
    found: list[Parts | None] = []
    for row, mask in zip(reversed(rows), reversed(masks), strict=True):
        wanted = tuple(var in pulled for var in row.outvars)
        if not any(wanted):
            found.append(None)
            continue
        part = parts(Alike(row), mask, wanted, remat)
        found.append(part)
        pulled.update(part.takers(row.invars))
    return found[::-1]


@final
class _Backward:
    """Builds the backward layers, from the last to the first."""

    def __init__(self, trained: Collection[core.Var], loss: core.Atom) -> None:
        self.accumulators: dict[core.Var, core.Var] = {}
        self.gradients: dict[core.Var, list[tuple[int, core.Var]]] = {}
        self._trained = frozenset(trained)
        self._cotangents: dict[core.Atom, list[core.Atom]] = {}
        if isinstance(loss, core.Var):
            self._cotangents[loss] = [core.Literal(np.ones((), loss.aval.dtype), core.raise_to_shaped(loss.aval))]

    def layer(self, n: int, row: core.Jaxpr, part: Parts | None, kept: Sequence[core.Atom]) -> core.Jaxpr:
        """The backward jaxpr of layer n; `kept` is what it takes of forward."""
        if part is None:
            return jaxpr_of((), ())
        equations: list[core.JaxprEqn] = []
        given = [self._sum(self._cotangents[var], equations) for var in row.outvars if var in self._cotangents]
        inner, results = renamed(part.backward, [*kept, *given])
        equations += inner
        passed: list[core.Atom] = []
        for var, atom in zip(part.takers(row.invars), results, strict=True):
            if var in self._trained:
                passed.append(self._accumulate(n, var, atom, equations))
            else:
                self._cotangents.setdefault(var, []).append(atom)
                passed.append(atom)
        own = {var for equation in equations for var in equation.outvars}
        return jaxpr_of(equations, dict.fromkeys(atom for atom in passed if _is_in(atom, own)))

    def _sum(self, atoms: Sequence[core.Atom], equations: list[core.JaxprEqn]) -> core.Atom:
        total = atoms[0]
        for atom in atoms[1:]:
            equations.append(equation_of(ad.add_jaxvals_p, [total, atom], atom.aval))
            total = equations[-1].outvars[0]
        return total

    def _accumulate(self, n: int, var: core.Var, gradient: core.Atom, equations: list[core.JaxprEqn]) -> core.Var:
        accumulator = new_variable(gradient.aval)
        equations.append(equation_of(lax.add_p, [accumulator, gradient], gradient.aval))
        result = self.accumulators[accumulator] = equations[-1].outvars[0]
        self.gradients.setdefault(var, []).append((n, result))
        return result


def _is_in(atom: core.Atom, variables: Collection[core.Var]) -> bool:
    return isinstance(atom, core.Var) and atom in variables
