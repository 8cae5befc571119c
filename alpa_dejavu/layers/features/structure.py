"""Which jaxprs are alike: the same operations in the same order on the same shapes, whatever their variables.

Values of constant arrays don't tell them apart: nothing that planning knows of a jaxpr hangs on them. Functions among
an equation's parameters (the derivative rules of `custom_jvp` and `custom_vjp`) are told apart by where they are
defined, and by what they close over: jax wraps all of them in the same functions of its own.
"""

from __future__ import annotations

import functools
import hashlib
import re
import weakref
from collections.abc import Callable, Hashable, Mapping
from typing import Any

from alpa_dejavu._util.jax_api import ClosedJaxpr, core, wrapped_function
from alpa_dejavu.layers._jaxprs import variables

__all__ = ["stable_structure", "structure", "variables"]

_PLAIN = frozenset({int, bool, float, str, type(None)})
_of_jaxprs: weakref.WeakKeyDictionary[core.Jaxpr, int] = weakref.WeakKeyDictionary()
_numbers: dict[Hashable, int] = {}
_digests: weakref.WeakKeyDictionary[core.Jaxpr, str] = weakref.WeakKeyDictionary()
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def structure(jaxpr: core.Jaxpr) -> int:
    """Returns a number that two jaxprs share if, and only if, they do the same operations on the same shapes.

    The number holds within one process only.
    """
    if jaxpr not in _of_jaxprs:
        _of_jaxprs[jaxpr] = _numbers.setdefault(_key(jaxpr, structure), len(_numbers))
    return _of_jaxprs[jaxpr]


def stable_structure(jaxpr: core.Jaxpr) -> str:
    """Returns a digest that two jaxprs share if they do the same operations on the same shapes, in any process."""
    if jaxpr not in _digests:
        text = _ADDRESS.sub("", repr(_key(jaxpr, stable_structure)))
        _digests[jaxpr] = hashlib.sha256(text.encode()).hexdigest()
    return _digests[jaxpr]


def _key(jaxpr: core.Jaxpr, inner: Callable[[core.Jaxpr], Hashable]) -> Hashable:
    places: dict[core.Var, int] = {}

    def defined(var: core.Var) -> Hashable:
        places[var] = len(places)
        return _array(var.aval)

    def read(atom: core.Atom) -> Hashable:
        if type(atom) is core.Literal:
            return "literal", str(atom.val), _array(atom.aval)
        # A result that no equation makes or takes comes from outside.
        return places.setdefault(atom, len(places))

    operands = tuple(defined(var) for var in (*jaxpr.constvars, *jaxpr.invars))
    equations = tuple(
        (
            equation.primitive.name,
            tuple(read(atom) for atom in equation.invars),
            tuple((name, _parameter(value, inner)) for name, value in equation.params.items()),
            tuple(defined(var) for var in equation.outvars),
        )
        for equation in jaxpr.eqns
    )
    return len(jaxpr.constvars), operands, equations, tuple(read(atom) for atom in jaxpr.outvars)


def _array(aval: Any) -> Hashable:
    """Returns a key that arrays share if they have the same shape and type."""
    if type(aval) is core.ShapedArray:
        return aval.shape, aval.dtype, aval.weak_type
    return aval.str_short(), getattr(aval, "weak_type", False)


def _parameter(value: Any, inner: Callable[[core.Jaxpr], Hashable]) -> Hashable:
    if type(value) in _PLAIN:
        return type(value), value
    if isinstance(value, ClosedJaxpr):
        return "jaxpr", inner(value.jaxpr)
    if isinstance(value, core.Jaxpr):
        return "jaxpr", inner(value)
    if isinstance(value, (tuple, list)):
        return tuple(_parameter(inner_value, inner) for inner_value in value)
    if isinstance(value, Mapping):
        return tuple((name, _parameter(inner_value, inner)) for name, inner_value in value.items())
    if isinstance(value, functools.partial):
        return "partial", *(_parameter(part, inner) for part in (value.func, value.args, value.keywords))
    if _unwrapped(value) is not value or (callable(value) and not isinstance(value, type)):
        return _function(value, set())
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return type(value), value


def _function(value: Any, seen: set[int]) -> Hashable:
    function = _unwrapped(value)
    seen.add(id(function))
    qualified = getattr(function, "__qualname__", repr(type(function)))
    parts: list[Hashable] = [getattr(function, "__module__", ""), qualified]
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # it isn't filled yet
            continue
        if type(content) in _PLAIN:
            parts.append(content)
        elif callable(content) and not isinstance(content, type) and id(_unwrapped(content)) not in seen:
            parts.append(_function(content, seen))
    return tuple(parts)


def _unwrapped(value: Any) -> Any:
    """The function that jax has wrapped, or the value itself."""
    if isinstance(value, weakref.ref):
        value = value()
    return wrapped_function(value)
