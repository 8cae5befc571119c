"""Layers that are alike: found by a key that is the same for two layers if their jaxprs differ in names only."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, final

from jax import core

from alpa_dejavu.sharding._layer_jaxprs import LayerJaxprs


def layer_key(layer: LayerJaxprs) -> Hashable:
    """The key of a layer: its three jaxprs, variables numbered as they come, and what each is for."""
    names = _Names()
    return (
        tuple(jaxpr and names.key(jaxpr) for jaxpr in (layer.forward, layer.backward, layer.update)),
        names.all(layer.parameters),
        tuple((names.number(a), names.number(b)) for a, b in layer.accumulators.items()),
        tuple((names.number(a), names.number(b)) for a, b in layer.gradients.items()),
        tuple((names.number(a), tuple(names.number(b) for b in found)) for a, found in layer.states.items()),
        names.all(layer.shared),
    )


@final
class _Names:
    """Numbers for variables in the order in which they come."""

    def __init__(self) -> None:
        self._numbers: dict[core.Var, int] = {}
        self._inner: dict[int, tuple[Any, Hashable]] = {}

    def number(self, var: core.Var) -> int:
        """The variable's number."""
        return self._numbers.setdefault(var, len(self._numbers))

    def all(self, variables: frozenset[core.Var]) -> tuple[int, ...]:
        """The numbers of those variables that came."""
        return tuple(sorted(self._numbers[var] for var in variables if var in self._numbers))

    def key(self, jaxpr: core.Jaxpr) -> Hashable:
        """The key of a jaxpr."""
        head = tuple((self.number(var), var.aval) for var in (*jaxpr.constvars, *jaxpr.invars))
        eqns = tuple(
            (
                eqn.primitive.name,
                tuple(self._atom(atom) for atom in eqn.invars),
                tuple((self.number(var), var.aval) for var in eqn.outvars),
                tuple((name, self._parameter(value)) for name, value in eqn.params.items()),
            )
            for eqn in jaxpr.eqns
        )
        return head, eqns, tuple(self._atom(atom) for atom in jaxpr.outvars)

    def _atom(self, atom: core.Atom) -> Hashable:
        return (atom.aval,) if isinstance(atom, core.Literal) else self.number(atom)

    def _parameter(self, value: Any) -> Hashable:
        """What a parameter says; inner jaxprs are compared by what they compute, functions by themselves."""
        inner = value.jaxpr if isinstance(value, core.ClosedJaxpr) else value
        if isinstance(inner, core.Jaxpr):
            if id(inner) not in self._inner:
                self._inner[id(inner)] = inner, _Names().key(inner)
            return self._inner[id(inner)][1]
        if isinstance(value, (tuple, list)):
            return tuple(self._parameter(part) for part in value)
        if callable(value):
            return getattr(value, "__qualname__", type(value).__name__)
        try:
            hash(value)
        except TypeError:
            return repr(value)
        return value
