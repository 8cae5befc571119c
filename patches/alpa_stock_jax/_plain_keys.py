"""Jaxprs whose variables are plain arrays: keys of random numbers stand in them as the words that they are made of.

Alpa cuts a jaxpr into stages and sends its variables between meshes as plain arrays. jax's typed keys have no such
form, and draws from raw keys are of typed ones within. So each equation on typed keys becomes a call that takes words
and gives words; what is drawn stays what jax draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax._src.core import closed_call_p, physical_aval
from jax._src.prng import KeyTy, random_unwrap_p, random_wrap_p
from jax.core import Atom, ClosedJaxpr, DropVar, Jaxpr, JaxprEqn, Literal, Var, gensym, new_jaxpr_eqn, no_effects

__all__ = ["is_key", "with_plain_keys"]


def is_key(value: Any) -> bool:
    """Whether something with a dtype, such as an abstract value, is a typed key or an array of them."""
    return isinstance(getattr(value, "dtype", None), KeyTy)


def with_plain_keys(closed_jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """Returns a jaxpr that computes the same, in which no variable is a typed key; arguments and results neither.

    Pipeline markers stay where they are.
    """
    jaxpr = closed_jaxpr.jaxpr
    plain = _Plain()
    constvars, invars = plain.bound(jaxpr.constvars), plain.bound(jaxpr.invars)
    eqns = [plain_eqn for eqn in jaxpr.eqns for plain_eqn in plain.equation(eqn)]
    outvars = [plain.atom(atom) for atom in jaxpr.outvars]
    consts = [jax.random.key_data(const) if is_key(const) else const for const in closed_jaxpr.consts]
    return ClosedJaxpr(jaxpr.replace(constvars=constvars, invars=invars, eqns=eqns, outvars=outvars), consts)


class _Plain:
    """The plain variable of each typed one, and equations on plain ones."""

    def __init__(self) -> None:
        self._new = gensym()
        self._of: dict[Var, Atom] = {}

    def atom(self, atom: Atom) -> Atom:
        return atom if isinstance(atom, Literal) else self._of.get(atom, atom)

    def bound(self, variables: list[Var]) -> list[Var]:
        """Plain variables for new ones."""
        return [self._bind(var) if is_key(var.aval) else var for var in variables]

    def _bind(self, var: Var) -> Var:
        aval = physical_aval(var.aval)
        if isinstance(var, DropVar):
            return DropVar(aval)
        self._of[var] = new = self._new(aval)
        return new

    def equation(self, eqn: JaxprEqn) -> Iterator[JaxprEqn]:
        """The equation on plain variables; none where it only makes a key of words or words of a key."""
        invars = [self.atom(atom) for atom in eqn.invars]
        if eqn.primitive in (random_wrap_p, random_unwrap_p):
            self._of[eqn.outvars[0]] = invars[0]
        elif eqn.primitive.name == "pipeline_marker" or not any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            yield eqn.replace(invars=invars, outvars=self.bound(eqn.outvars))
        else:
            variables = list(dict.fromkeys(atom for atom in eqn.invars if isinstance(atom, Var)))
            yield new_jaxpr_eqn(
                [self.atom(var) for var in variables], self.bound(eqn.outvars), closed_call_p,
                {"call_jaxpr": _call(eqn, variables)}, eqn.effects, eqn.source_info,
            )  # fmt: skip


def _call(eqn: JaxprEqn, variables: list[Var]) -> ClosedJaxpr:
    """One equation, between equations that make keys of words and words of keys."""
    words = _Plain()
    invars = words.bound(variables)
    wraps = [
        new_jaxpr_eqn([plain], [var], random_wrap_p, {"impl": var.aval.dtype._impl}, no_effects)
        for plain, var in zip(invars, variables, strict=True) if plain is not var
    ]  # fmt: skip
    outvars = [gensym()(var.aval) if isinstance(var, DropVar) else var for var in eqn.outvars]
    results = words.bound(outvars)
    unwraps = [
        new_jaxpr_eqn([var], [plain], random_unwrap_p, {}, no_effects)
        for plain, var in zip(results, outvars, strict=True) if plain is not var
    ]  # fmt: skip
    return ClosedJaxpr(Jaxpr((), invars, results, [*wraps, eqn.replace(outvars=outvars), *unwraps], eqn.effects), ())
