"""Numbers that the optimizer needs of several meshes are reduced by all meshes, in one order.

The update is one program that Alpa cuts into a part for each mesh. A sum (or minimum, maximum, and, or) of numbers from
several meshes becomes an all-reduce in which every mesh takes part, by the neutral number if it has nothing to give:

    sqrt(a² + b² + c²)      mesh 0: r = all_reduce(0 + a²), sqrt(r)     mesh 1: r = all_reduce(0 + b² + c²), sqrt(r)

So all parts have the same all-reduces. Each takes the result of the one before it, and the last result leaves the part:
no compiler can turn them round, or drop one whose result a mesh doesn't need. (Alpa's own are dropped there, so that
other meshes wait for ever; it refuses reductions over different meshes in one step, and counts a sum once that is added
to itself.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from jax import lax
from jax._src.lax import lax as lax_internal
from jax.core import ClosedJaxpr, DropVar, JaxprEqn, Literal, ShapedArray, Var

from alpa_stock_jax._patch import Patch

__all__ = ["OPERATORS", "link", "split"]

OPERATORS = {lax.add_p: "SUM", lax.and_p: "AND", lax.or_p: "OR", lax.min_p: "MIN", lax.max_p: "MAX"}
"""The operators of reductions, all of them associative and commutative."""
_NEUTRAL = {
    lax.add_p: lax_internal._get_sum_identity,
    lax.and_p: lax_internal._get_bitwise_and_identity,
    lax.or_p: lax_internal._get_bitwise_or_identity,
    lax.min_p: lax_internal._get_min_identity,
    lax.max_p: lax_internal._get_max_identity,
}
NewVar = Callable[[Any], Var]


def split(jaxpr: ClosedJaxpr, places: Mapping[Var, Sequence[int]], new_var: NewVar, num_meshes: int) -> ClosedJaxpr:
    """Returns the update with an all-reduce for each reduction of numbers that no mesh has all of.

    Args:
        jaxpr: of the whole update.
        places: the meshes that have an input; an input without any can be on all.
        new_var: makes a variable.
        num_meshes: of the pipeline.
    """
    trees = _reductions(jaxpr)
    everywhere = frozenset(range(num_meshes))
    at = {var: frozenset(places[var]) for var in jaxpr.jaxpr.invars if places.get(var)}
    eqns: list[JaxprEqn] = []
    for number, eqn in enumerate(jaxpr.eqns):
        leaves = trees.get(number, eqn.invars)
        places_of_leaves = [at.get(leaf, everywhere) for leaf in leaves if isinstance(leaf, Var)]
        place = everywhere.intersection(*places_of_leaves)
        if place:
            eqns.append(eqn)
        elif number in trees:
            # What the reduction was made of before is read by nobody then, and runs nowhere.
            eqns += _all_reduce(eqn, leaves, at, new_var, num_meshes)
            place = everywhere
        else:
            eqns.append(eqn)
            place = place.union(*places_of_leaves)
        at.update((var, place) for var in eqn.outvars if not isinstance(var, DropVar))
    return _with_eqns(jaxpr, eqns)


def _reductions(jaxpr: ClosedJaxpr) -> dict[int, list[Any]]:
    """The leaves of each tree of reductions, by the number of its last equation."""
    readers: dict[Var, list[JaxprEqn | None]] = {}
    for eqn in jaxpr.eqns:
        for var in eqn.invars:
            if isinstance(var, Var):
                readers.setdefault(var, []).append(eqn)
    for var in jaxpr.jaxpr.outvars:
        if isinstance(var, Var):
            readers.setdefault(var, []).append(None)
    found: dict[int, list[Any]] = {}
    going_on: dict[Var, list[Any]] = {}
    for number, eqn in enumerate(jaxpr.eqns):
        if not _reduces(eqn):
            continue
        leaves = [
            leaf for var in eqn.invars for leaf in (going_on.get(var, [var]) if isinstance(var, Var) else [var])
        ]
        match readers.get(eqn.outvars[0], []):
            case [JaxprEqn() as reader] if _reduces(reader) and reader.primitive is eqn.primitive:
                going_on[eqn.outvars[0]] = leaves
            case _:
                found[number] = leaves
    return found


def _reduces(eqn: JaxprEqn) -> bool:
    return eqn.primitive in OPERATORS and not isinstance(eqn.outvars[0], DropVar) and eqn.outvars[0].aval.shape == ()


def _all_reduce(
    eqn: JaxprEqn, leaves: Sequence[Any], at: Mapping[Var, frozenset[int]], new_var: NewVar, num_meshes: int
) -> list[JaxprEqn]:
    from alpa.pipeline_parallel.apply_grad import cross_mesh_allreduce_p
    from alpa.util import new_jaxpr_eqn

    aval = eqn.outvars[0].aval
    of_mesh: list[list[Any]] = [[] for _ in range(num_meshes)]
    for leaf in leaves:
        of_mesh[min(at.get(leaf, (0,))) if isinstance(leaf, Var) else 0].append(leaf)
    eqns, given = [], []
    for own in of_mesh:
        value: Any = _neutral(eqn.primitive, aval)
        for leaf in own or [value]:
            result = new_var(aval)
            eqns.append(new_jaxpr_eqn([value, leaf], [result], eqn.primitive, {}))
            value = result
        given.append(value)
    params = {"type": eqn.primitive, "group_meshes": list(range(num_meshes))}
    return [*eqns, new_jaxpr_eqn(given, eqn.outvars, cross_mesh_allreduce_p, params)]


def _neutral(primitive: Any, aval: Any) -> Literal:
    """The number that changes no other one."""
    return Literal(np.asarray(_NEUTRAL[primitive](aval.dtype)), ShapedArray((), aval.dtype))


def link(jaxpr: ClosedJaxpr, new_var: NewVar, alone: bool = False) -> ClosedJaxpr:
    """Returns a mesh's part of the update, whose all-reduces take what it has, are numbered, and wait for each other.

    Args:
        jaxpr: the mesh's equations; those of all-reduces name what each mesh gives.
        new_var: makes a variable.
        alone: whether the part runs without other meshes, as in profiling: then its own numbers are the results.
    """
    from alpa.pipeline_parallel.apply_grad import cross_mesh_allreduce_p
    from alpa.util import new_jaxpr_eqn

    made = {var for eqn in jaxpr.eqns for var in eqn.outvars}
    eqns: list[JaxprEqn] = []
    last: JaxprEqn | None = None
    for eqn in jaxpr.eqns:
        if eqn.primitive is cross_mesh_allreduce_p:
            (own,) = made.intersection(eqn.invars)
            if alone:
                eqn = _copy(own, eqn.outvars[0], eqn.params["type"])
            else:
                number, before = (last.params["number"] + 1, last.outvars) if last else (0, [])
                params = {**eqn.params, "number": number}
                eqn = last = new_jaxpr_eqn([own, *before], eqn.outvars, cross_mesh_allreduce_p, params)
        eqns.append(eqn)
    if last is None:
        return _with_eqns(jaxpr, eqns)
    kept = new_var(last.outvars[0].aval)
    eqns.append(_copy(last.outvars[0], kept, last.params["type"]))
    return _with_eqns(jaxpr, eqns, [*jaxpr.jaxpr.outvars, kept])


def _copy(var: Var, copy: Var, primitive: Any) -> JaxprEqn:
    from alpa.util import new_jaxpr_eqn

    eqn: JaxprEqn = new_jaxpr_eqn([var, _neutral(primitive, var.aval)], [copy], primitive, {})
    return eqn


def _with_eqns(jaxpr: ClosedJaxpr, eqns: Sequence[JaxprEqn], outvars: Sequence[Any] | None = None) -> ClosedJaxpr:
    from alpa.util import clone_jaxpr

    result: ClosedJaxpr = clone_jaxpr(jaxpr, eqns=list(eqns), outvars=outvars)
    return result


def _replace(module: ModuleType) -> None:
    rewriter: Any = module.ApplyGradRewriter

    def split_replicated_eqns(self: Any, gensym_fn: NewVar, num_mesh: int) -> tuple[ClosedJaxpr, tuple[Any, ...]]:
        """Splits the update; the one group of meshes is all of them."""
        found = split(self.jaxpr, self.var_mesh, gensym_fn, num_mesh)
        reduces = any(eqn.primitive is module.cross_mesh_allreduce_p for eqn in found.eqns)
        return found, (tuple(range(num_mesh)),) if reduces else ()

    def rewrite_allreduce(
        closed_jaxpr: ClosedJaxpr, rewrite_to_dummy: bool, num_devices: int | None, gensym_fn: NewVar
    ) -> ClosedJaxpr:
        """Links a mesh's all-reduces; a mesh's number counts once, whatever the number of its devices."""
        return link(closed_jaxpr, gensym_fn, rewrite_to_dummy)

    rewriter.split_replicated_eqns = split_replicated_eqns
    rewriter.rewrite_allreduce = staticmethod(rewrite_allreduce)


PATCHES: tuple[Patch, ...] = (
    Patch(
        module="alpa.pipeline_parallel.apply_grad",
        reason="all meshes take part in each reduction between meshes, and in one order (Alpa's could wait for ever)",
        apply=_replace,
        expects={
            "ApplyGradRewriter.split_replicated_eqns": ("self", "gensym_fn", "num_mesh"),
            "ApplyGradRewriter.rewrite_allreduce": ("closed_jaxpr", "rewrite_to_dummy", "num_devices", "gensym_fn"),
            "cross_mesh_allreduce_p": None,
        },
        uses=tuple(f"jax._src.lax.lax.{identity.__name__}" for identity in _NEUTRAL.values()),
    ),
)
