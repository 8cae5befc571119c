"""Marks in a model function, after which its layers end: they take the place of the rule by which layers are cut."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.ad_checkpoint import checkpoint_name

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import named, on_names

__all__ = ["mark_layer_end", "marked_layers", "without_marks"]

_NAME = "alpa_dejavu.layer_end"


def mark_layer_end(x: jax.Array) -> jax.Array:
    """Returns an array as it is, and marks in a traced step that the layer which computes it ends here."""
    marked: jax.Array = checkpoint_name(x, _NAME)
    return marked


def marked_layers(equations: Sequence[core.JaxprEqn]) -> list[list[core.JaxprEqn]]:
    """Returns the equations of each marked layer, with the mark at its end, and those behind the last mark, if any."""
    rows: list[list[core.JaxprEqn]] = [[]]
    for equation in equations:
        rows[-1].append(equation)
        if _is_mark(equation):
            rows.append([])
    return rows if rows[-1] else rows[:-1] or rows


def without_marks(loss: core.Jaxpr) -> tuple[core.Jaxpr, tuple[int, ...]]:
    """Returns a jaxpr without marks, and the number of equations before each marked layer's end; none without marks."""
    names: dict[core.Var, core.Atom] = {}
    kept: list[core.JaxprEqn] = []
    ends: list[int] = []
    for equation in loss.eqns:
        if _is_mark(equation):
            names[equation.outvars[0]] = named(names, equation.invars[0])
            ends.append(len(kept))
        else:
            kept.append(on_names(equation, names))
    if not ends:
        return loss, ()
    results = [named(names, atom) for atom in loss.outvars]
    return loss.replace(eqns=kept, outvars=results), tuple(end for end in dict.fromkeys([*ends, len(kept)]) if end)


def _is_mark(equation: core.JaxprEqn) -> bool:
    return equation.primitive.name == "name" and equation.params.get("name") == _NAME
