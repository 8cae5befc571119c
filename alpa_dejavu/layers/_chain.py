"""The layers' forward and backward jaxprs, tied together: each layer's parts on the variables that it really has.

A layer is differentiated piece by piece: the pieces of large models are alike far more often than their layers are. In
the layers' jaxprs each piece is one call.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import final

import jax.numpy as jnp
import numpy as np
from jax import lax

from alpa_dejavu._util.jax_api import add_any_p, core, new_variable, shaped
from alpa_dejavu.layers._derivative import Alike, LayerPasses, depending, parts
from alpa_dejavu.layers._jaxprs import calling, equation_of, is_in, jaxpr_of, named


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """The forward and backward jaxprs of all layers of a loss, tied together by the variables that they share.

    Attributes:
        forward: the forward jaxpr of each layer; its results are what later layers, backward passes or the step take.
        backward: the backward jaxpr of each layer, in the same order; without equations if nothing is differentiated.
        accumulators: for each operand of the backward jaxprs that a gradient is added to, the result that is their sum.
        gradients: for each trained operand that has any, (layer, accumulated gradient) of each layer that uses it.
        names: for variables of the loss's jaxpr what stands for them in the forward jaxprs.
    """

    forward: tuple[core.Jaxpr, ...]
    backward: tuple[core.Jaxpr, ...]
    accumulators: Mapping[core.Var, core.Var]
    gradients: Mapping[core.Var, list[tuple[int, core.Var]]]
    names: Mapping[core.Var, core.Atom]


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _EquationRow:
    """A row of equations, its parts if there is anything to differentiate, and what backward takes of forward."""

    row: core.Jaxpr
    parts: LayerPasses | None
    kept: Sequence[core.Atom]


def chain_of(
    rows: Sequence[core.Jaxpr],
    pieces: Sequence[Sequence[core.Jaxpr]],
    trained: Collection[core.Var],
    loss: core.Atom,
    remat: bool,
) -> Chain:
    """Differentiates a loss that is cut into layers by the operands that are trained.

    `rows` are the jaxprs of the loss's layers, and `pieces` each one's equations as one jaxpr, or as several in a row
    that are differentiated one by one; `loss` is the result that is the loss. With `remat` backward passes compute the
    forward pass again.
    """
    split = iter(_split(list(itertools.chain(*pieces)), trained, loss, remat))
    names: dict[core.Var, core.Atom] = {}
    forward, layers = [], []
    for row, own_rows in zip(rows, pieces, strict=True):
        own = [(piece, next(split)) for piece in own_rows]
        equations, layer = _forward(own, names, remat)
        results = [named(names, var) for var in row.outvars]
        results += [] if remat else [atom for piece in layer for atom in piece.kept]
        forward.append(_on_own(equations, results))
        layers.append(layer)
    back = _Backward(trained, loss)
    backward = [back.layer(n, layers[n]) for n in range(len(rows) - 1, -1, -1)]
    return Chain(tuple(forward), tuple(reversed(backward)), back.accumulators, back.gradients, names)


def _forward(
    own: Sequence[tuple[core.Jaxpr, LayerPasses | None]], names: dict[core.Var, core.Atom], remat: bool
) -> tuple[list[core.JaxprEqn], list[_EquationRow]]:
    """A layer's forward equations, and its pieces; `names` is told how their results are called."""
    equations: list[core.JaxprEqn] = []
    layer = []
    for row, part in own:
        operands = [named(names, var) for var in row.invars]
        inner, results = calling(row if part is None else part.forward, operands)
        equations += inner
        names.update(zip(row.outvars, results[: len(row.outvars)], strict=True))
        layer.append(_EquationRow(row, part, operands if remat else results[len(row.outvars) :]))
    return equations, layer


def _on_own(equations: Sequence[core.JaxprEqn], results: Iterable[core.Atom]) -> core.Jaxpr:
    """The jaxpr of equations with those of some results that they compute, each once."""
    own = {var for equation in equations for var in equation.outvars}
    return jaxpr_of(equations, dict.fromkeys(atom for atom in results if is_in(atom, own)))


def _split(
    rows: Sequence[core.Jaxpr], trained: Collection[core.Var], loss: core.Atom, remat: bool
) -> list[LayerPasses | None]:
    """Each row's parts, None where nothing is to be differentiated."""
    active = {var for var in trained if jnp.issubdtype(var.aval.dtype, np.inexact)}
    masks = []
    for row in rows:
        masks.append(tuple(var in active for var in row.invars))
        if any(masks[-1]):
            depends = depending(Alike(row), masks[-1])
            active.update(var for var, on in zip(row.outvars, depends, strict=True) if on)
    pulled = {loss} & active
    split: list[LayerPasses | None] = []
    for row, mask in zip(reversed(rows), reversed(masks), strict=True):
        wanted = tuple(var in pulled for var in row.outvars)
        part = parts(Alike(row), mask, wanted, remat) if any(wanted) else None
        split.append(part)
        pulled.update(() if part is None else part.takers(row.invars))
    return split[::-1]


@final
class _Backward:
    """Builds the backward layers, from the last to the first."""

    def __init__(self, trained: Collection[core.Var], loss: core.Atom) -> None:
        self.accumulators: dict[core.Var, core.Var] = {}
        self.gradients: dict[core.Var, list[tuple[int, core.Var]]] = {}
        self._trained = frozenset(trained)
        self._cotangents: dict[core.Atom, list[core.Atom]] = {}
        if isinstance(loss, core.Var):
            self._cotangents[loss] = [core.Literal(np.ones((), loss.aval.dtype), shaped(loss.aval))]

    def layer(self, n: int, pieces: Sequence[_EquationRow]) -> core.Jaxpr:
        """Builds the backward jaxpr of layer n, the last one first; gradients of an operand are added up at its last
        use.
        """
        equations: list[core.JaxprEqn] = []
        inside = {var for piece in pieces for var in piece.row.outvars}
        waiting = collections.Counter(var for piece in pieces for var in _takers(piece) if var not in inside)
        slopes: dict[core.Var, list[core.Atom]] = {}
        passed: list[core.Atom] = []
        for piece in reversed(pieces):
            if piece.parts is None:
                continue
            of_results = [self._sum(self._cotangents[v], equations) for v in piece.row.outvars if v in self._cotangents]
            inner, results = calling(piece.parts.backward, [*piece.kept, *of_results])
            equations += inner
            for var, atom in zip(_takers(piece), results, strict=True):
                if var in inside:
                    self._cotangents.setdefault(var, []).append(atom)
                    continue
                slopes.setdefault(var, []).append(atom)
                if len(slopes[var]) == waiting[var]:
                    passed.append(self._finish(n, var, slopes[var], equations))
        return _on_own(equations, passed)

    def _finish(self, n: int, var: core.Var, atoms: Sequence[core.Atom], equations: list[core.JaxprEqn]) -> core.Atom:
        """All of layer n's cotangents of one of its operands: added up, and accumulated if it is trained. Those of an
        activation that several layers use are added to what the layer behind has passed on, as Alpa does.
        """
        if var not in self._trained:
            total = self._sum([*self._cotangents.get(var, ()), *atoms], equations)
            self._cotangents[var] = [total]
            return total
        total = self._sum(atoms, equations)
        accumulator = new_variable(total.aval)
        equations.append(equation_of(lax.add_p, [accumulator, total], total.aval))
        result = self.accumulators[accumulator] = equations[-1].outvars[0]
        self.gradients.setdefault(var, []).append((n, result))
        return result

    def _sum(self, atoms: Sequence[core.Atom], equations: list[core.JaxprEqn]) -> core.Atom:
        total = atoms[0]
        for atom in atoms[1:]:
            equations.append(equation_of(add_any_p, [total, atom], atom.aval))
            total = equations[-1].outvars[0]
        return total


def _takers(piece: _EquationRow) -> list[core.Var]:
    """The operands of a piece that have a cotangent."""
    return [] if piece.parts is None else piece.parts.takers(piece.row.invars)
