"""The region of scores: all equations that compute with scores, from the products that make them to those that take
them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import is_in, shape_of, variables
from alpa_dejavu.layers.attention._equations import Equations, Location
from alpa_dejavu.layers.attention._labels import RESHAPES, Labels, backward_labels, forward_labels, united
from alpa_dejavu.layers.features.operator_kinds import is_elementwise

_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min"})
_MOVES = RESHAPES | {"broadcast_in_dim", "transpose", "iota"}


class MixedError(ValueError):
    """Scores are computed with in a way that no kernel of attention knows."""


@final
class ScoreRegion:
    """The equations of one pass that compute with scores, or with a number for each row of them.

    It grows from seeds, with labels that are the numbers of the scores' dimensions, forward to all that is computed
    from them, up to products and to sums over anything but the keys; then backward to what is as large as scores and is
    only used among them, such as masks and dropout. `queries` are the labels that keys don't have, and `mate` is a pass
    that may take values of the region, too.

    Attributes:
        inside: the equations that compute scores from scores.
        enters: the products that make scores.
        leaves: the products that take scores, each with its operand that is scores.
        sums: the sums over more than the keys, as the gradient of a bias is.
        labels: the labels of each value that is scores, or has a number for each row of them.

    Raises MixedError where scores are mixed along their dimensions.
    """

    def __init__(
        self,
        equations: Equations,
        number: int,
        seeds: Mapping[core.Var, Labels],
        scores: core.Var,
        keys: int,
        queries: frozenset[int],
        mate: int = -1,
    ) -> None:
        self.number, self.keys, self.queries = number, keys, queries
        self.inside: set[Location] = set()
        self.enters: set[Location] = set()
        self.leaves: dict[Location, core.Var] = {}
        self.sums: set[Location] = set()
        self.labels: dict[core.Var, Labels] = dict(seeds)
        self._equations, self._shape, self._mate = equations, shape_of(scores), mate
        self._beside: dict[core.Var, Labels] = {}
        self._flood(list(seeds))
        while (absorbed := self._absorbed()) is not None:
            self._flood(absorbed)

    def passed(self) -> set[core.Var]:
        """Returns those of the region's values that its pass makes and keeps for another one; raises MixedError if a
        value is taken by something else in the pass, or leaves the step.
        """
        kept = set()
        for var in self.labels:
            if self._equations.makers[var][0] != self.number:
                continue
            if var in self._equations.left:
                raise MixedError("scores are a result of the step")
            for location in self._equations.takers.get(var, ()):
                if location[0] != self.number:
                    kept.add(var)
                elif not self._has(location):
                    raise MixedError("scores are taken by something else")
        return kept

    def dependents(self, start: set[core.Var]) -> set[core.Var]:
        """Returns some of the region's values, and all of its values that depend on them."""
        dependents = set(start)
        for location in sorted(self.inside):
            equation = self._equations.at(location)
            if not dependents.isdisjoint(variables(equation.invars)):
                dependents.update(equation.outvars)
        return dependents

    def independent_of(self, values: set[core.Var]) -> list[Location]:
        """Returns the places of the equations inside of the region that don't make any of some values, in order."""
        return [location for location in sorted(self.inside) if values.isdisjoint(self._equations.at(location).outvars)]

    def _has(self, location: Location) -> bool:
        return location in self.inside or location in self.leaves or location in self.sums

    def _flood(self, stack: list[core.Var]) -> None:
        while stack:
            var = stack.pop()
            for taker in self._equations.takers.get(var, ()):
                if taker[0] == self.number:
                    stack += self._take(taker, var)

    def _take(self, location: Location, var: core.Var) -> list[core.Var]:
        """Adds an equation that takes a value of the region; returns the value that it makes, if that is new."""
        equation = self._equations.at(location)
        name = equation.primitive.name
        if name == "dot_general":
            if self.leaves.setdefault(location, var) is not var:
                raise MixedError("scores are multiplied with scores")
            return []
        if name in _REDUCTIONS:
            gone = [(self.labels[var][axis], shape_of(var)[axis]) for axis in equation.params["axes"]]
            if any(label != self.keys and size > 1 for label, size in gone):
                self.sums.add(location)
                return []
        elif name not in _MOVES and not is_elementwise(equation):
            raise MixedError(f"scores are taken by {name}")
        return self._label(location, equation)

    def _label(self, location: Location, equation: core.JaxprEqn) -> list[core.Var]:
        (result,) = equation.outvars
        labels: Labels | None = self.labels.get(result, (None,) * len(shape_of(result)))
        for n, atom in enumerate(equation.invars):
            if is_in(atom, self.labels) and labels is not None:
                own = forward_labels(equation, n, self.labels[atom])
                labels = None if own is None else united(labels, own)
        if labels is None:
            raise MixedError(f"scores are mixed by {equation.primitive.name}")
        labels = self._with_keys(labels, shape_of(result))
        self.inside.add(location)
        for n, atom in enumerate(equation.invars):
            if isinstance(atom, core.Var) and atom not in self.labels:
                beside = backward_labels(equation, n, labels)
                if beside is not None:
                    self._beside[atom] = beside
        if self.labels.get(result) == labels:
            return []
        self.labels[result] = labels
        return [result]

    def _with_keys(self, labels: Labels, shape: tuple[int, ...]) -> Labels:
        """The labels of what was spread out along the keys."""
        if self.keys in labels:
            return labels
        free = [dim for dim, label in enumerate(labels) if label is None and shape[dim] > 1]
        if not free:
            return labels
        if len(free) > 1 or shape[free[0]] != self._shape[self.keys]:
            raise MixedError("rows of scores are spread out along something else")
        return tuple(self.keys if dim == free[0] else label for dim, label in enumerate(labels))

    def _absorbed(self) -> list[core.Var] | None:
        """Adds what makes one operand beside scores; returns the values to grow from again, None if there is none."""
        for var, labels in self._beside.items():
            location = self._equations.makers.get(var)
            if var in self.labels or location is None or location[0] != self.number:
                continue
            if self.keys not in labels or self.queries.isdisjoint(labels):
                continue
            equation = self._equations.at(location)
            if equation.primitive.name == "dot_general":
                is_batched = bool(equation.params["dimension_numbers"][1][0])
                if is_batched and math.prod(shape_of(var)) == math.prod(self._shape):
                    self.enters.add(location)
                    self.labels[var] = labels
                    return [var]
            elif self._is_own(location, equation, var):
                self.labels[var] = labels
                self._label(location, equation)
                return []
        return None

    def _is_own(self, location: Location, equation: core.JaxprEqn, var: core.Var) -> bool:
        """Whether an equation makes something that is as large as scores, for the region alone."""
        name = equation.primitive.name
        if len(equation.outvars) != 1 or var in self._equations.left:
            return False
        if not (name in _MOVES or name == "random_bits" or is_elementwise(equation)):
            return False
        takers = self._equations.takers.get(var, ())
        return all(self._has(taker) if taker[0] == self.number else taker[0] == self._mate for taker in takers)
