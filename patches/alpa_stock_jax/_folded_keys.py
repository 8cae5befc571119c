"""Keys that differ between micro-batches: where one key serves them all, each folds in its number.

A train step in M micro-batches calls its loss M times. With one key, all would draw the same numbers, and dropout would
drop the same units in each. So micro-batch m draws as `loss(params, micro_batch, jax.random.fold_in(key, m))`: each key
that enters the loss, and each that the loss makes of a seed, is folded once with m; what is derived from it is as in
jax. A key that is computed from the batch, as one for each sample, differs already and stays as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import source_info_util
from jax._src.ad_checkpoint import remat_p
from jax._src.core import jaxprs_in_params
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr
from jax._src.lax.control_flow.conditionals import cond_p
from jax._src.prng import random_fold_in, random_seed_p, random_wrap_p
from jax.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from alpa_stock_jax._plain_keys import is_key

__all__ = ["KEY_RESULT", "folded_keys"]

KEY_RESULT = (
    "a result of the loss is a key of random numbers, which differs between micro-batches, but must be the same for "
    "all; split the key before the loss, or take one micro-batch"
)

_KEYS = (random_seed_p, random_wrap_p)
# The parameter that is called with an equation's operands.
_CALLED = {
    remat_p.name: "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}  # fmt: skip


def folded_keys(closed: ClosedJaxpr, varying: Sequence[bool]) -> ClosedJaxpr | None:
    """A loss's jaxpr whose keys are folded with the number of the micro-batch, or None where none is to be.

    Args:
        closed: the loss's.
        varying: whether each of its arguments differs between micro-batches already.

    Returns:
        A jaxpr that takes the number, an unsigned scalar, before the loss's arguments.

    Raises:
        NotImplementedError: a key is made in a loop, or in a function that has a derivative of its own, or one is a
            result.
    """
    folded, flags, folds = _traced(closed, list(varying))
    if not folds:
        return None
    if any(_may_be_key(var.aval) for var in itertools.compress(closed.jaxpr.outvars, flags)):
        raise NotImplementedError(KEY_RESULT)
    return folded


def _may_be_key(aval: Any) -> bool:
    """Whether an abstract value is a key's, or its words' by its shape."""
    return is_key(aval) or (aval.dtype == jnp.uint32 and aval.shape[-1:] in ((2,), (4,)))


class _Folding:
    """Evaluates jaxprs with folded keys.

    Attributes:
        folds: how many keys were folded.
    """

    def __init__(self, number: Any) -> None:
        self._number = number
        self.folds = 0

    def run(self, jaxpr: Jaxpr, values: Sequence[Any], varying: Sequence[bool]) -> tuple[list[Any], list[bool]]:
        """Evaluates a jaxpr.

        Args:
            jaxpr: what is evaluated.
            values: those of its constants and its arguments.
            varying: whether each of these differs between micro-batches.

        Returns:
            The results, and whether each differs between micro-batches.
        """
        known: dict[Any, tuple[Any, bool]] = {}
        for var, value, varies in zip([*jaxpr.constvars, *jaxpr.invars], values, varying, strict=True):
            known[var] = (value, varies) if varies or not is_key(var.aval) else (self._fold(value), True)
        for eqn in jaxpr.eqns:
            read = [(atom.val, False) if isinstance(atom, Literal) else known[atom] for atom in eqn.invars]
            stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
            with source_info_util.user_context(eqn.source_info.traceback, name_stack=stack), eqn.ctx.manager:
                results, flags = self._equation(eqn, [value for value, _ in read], [varies for _, varies in read])
            known.update(zip(eqn.outvars, zip(results, flags, strict=True), strict=True))
        found = [(atom.val, False) if isinstance(atom, Literal) else known[atom] for atom in jaxpr.outvars]
        return [value for value, _ in found], [varies for _, varies in found]

    def _fold(self, keys: Any) -> Any:
        self.folds += 1
        return random_fold_in(keys, jnp.broadcast_to(jnp.uint32(self._number), keys.shape))

    def _equation(self, eqn: JaxprEqn, values: list[Any], flags: list[bool]) -> tuple[list[Any], list[bool]]:
        if eqn.primitive in _KEYS and not any(flags):
            return [self._fold(_bound(eqn, values))], [True]
        if _makes_keys(eqn):
            found = self._branches(eqn, values, flags) if eqn.primitive is cond_p else self._call(eqn, values, flags)
            if found is not None:
                return found
        results = _bound(eqn, values)
        return list(results) if eqn.primitive.multiple_results else [results], [any(flags)] * len(eqn.outvars)

    def _call(
        self, eqn: JaxprEqn, values: list[Any], flags: list[bool]
    ) -> tuple[list[Any], list[bool]] | None:
        """An equation that calls a jaxpr with its operands; None if no key is folded within."""
        called = eqn.params.get(_CALLED.get(eqn.primitive.name, ""))
        if called is None:
            raise _unknown(eqn)
        new, out_flags, folds = _traced(called, flags)
        if not folds:
            return None
        if eqn.primitive.name.startswith("custom_"):
            raise _unknown(eqn)
        self.folds += folds
        operands = [*new.consts, self._number, *values]
        if eqn.primitive is remat_p:
            params = {**eqn.params, "jaxpr": convert_constvars_jaxpr(new.jaxpr)}
            return eqn.primitive.bind(*operands, **params), out_flags
        return jax.core.eval_jaxpr(new.jaxpr, new.consts, self._number, *values), out_flags

    def _branches(self, eqn: JaxprEqn, values: list[Any], flags: list[bool]) -> tuple[list[Any], list[bool]]:
        traced = [_traced(branch, flags[1:]) for branch in eqn.params["branches"]]
        self.folds += sum(folds for _, _, folds in traced)
        params = {**eqn.params, "branches": tuple(new for new, _, _ in traced)}
        out_flags = [flags[0] or any(each) for each in zip(*(each for _, each, _ in traced), strict=True)]
        return cond_p.bind(values[0], self._number, *values[1:], **params), out_flags


def _traced(called: Any, flags: list[bool]) -> tuple[Any, list[bool], int]:
    """A called jaxpr with folded keys, the number before its arguments; which results vary; how many folds."""
    jaxpr, consts = (called, ()) if isinstance(called, Jaxpr) else (called.jaxpr, called.consts)
    inner, out_flags = _Folding(None), list[bool]()

    def function(number: Any, *args: Any) -> list[Any]:
        inner._number = number
        results, found = inner.run(jaxpr, [*consts, *args], [*([False] * len(consts)), *flags])
        out_flags.extend(found)
        return results

    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    with jax.disable_jit():
        folded = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((), jnp.uint32), *shapes)
    return folded, out_flags, inner.folds


def _bound(eqn: JaxprEqn, values: Sequence[Any]) -> Any:
    functions, params = eqn.primitive.get_bind_params(eqn.params)
    return eqn.primitive.bind(*functions, *values, **params)


def _makes_keys(eqn: JaxprEqn) -> bool:
    """Whether keys are made within what an equation calls."""
    return any(
        inner.primitive in _KEYS or _makes_keys(inner)
        for jaxpr in jaxprs_in_params(eqn.params)
        for inner in jaxpr.eqns
    )


def _unknown(eqn: JaxprEqn) -> NotImplementedError:
    where = source_info_util.summarize(eqn.source_info)
    return NotImplementedError(
        f"a key of random numbers is made inside of {eqn.primitive.name} ({where}), but must be made outside of loops "
        "and of functions with derivatives of their own, so that micro-batches draw differently; make it before, with "
        "jax.random.key, and pass it in"
    )
