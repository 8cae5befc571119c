"""The interfaces of jax that aren't public, or that moved between versions; no other file asks which version it is.

Jaxprs and their parts are taken from `core`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax._src import api, config, core, lib, linear_util
from jax._src.interpreters import ad, batching, partial_eval
from jax.extend.core import ClosedJaxpr

__all__ = [
    "TRIED",
    "ClosedJaxpr",
    "ad",
    "add_any_p",
    "asks_to_be_inlined",
    "batching",
    "bound",
    "core",
    "distributed_runtime",
    "gradients_by",
    "new_jaxpr",
    "new_variable",
    "scan_operands",
    "shaped",
    "untried_version",
    "without_dead_code",
    "wrapped_function",
]

TRIED = ("0.4.30", "0.6.2", "0.12.0.1")
"""The versions that models were planned by."""

add_any_p = ad.add_jaxvals_p
"""The primitive that adds up the cotangents of a value that is used several times."""

distributed_runtime: Any = getattr(lib, "_jax" if hasattr(lib, "_jax") else "xla_extension")
"""The extension module that joins processes and has their collectives."""


def shaped(aval: core.AbstractValue) -> core.AbstractValue:
    """Returns an abstract value without a concrete one, which old versions of jax may have in it."""
    to_shaped = getattr(core, "raise_to_shaped", None)
    return aval if to_shaped is None else to_shaped(aval)


def untried_version() -> str:
    """Returns which versions were tried, in a sentence, where none of this jax's series was; else nothing."""
    series = [version.split(".")[:2] for version in TRIED]
    if jax.__version__.split(".")[:2] in series:
        return ""
    *others, last = TRIED
    return (
        f"jax {jax.__version__} was never tried, but {', '.join(others)} and {last} were; compare this plan with what "
        "one of these gives"
    )


def new_jaxpr(
    operands: Iterable[core.Var],
    results: Iterable[core.Atom],
    equations: Iterable[core.JaxprEqn],
    effects: Iterable[core.Effect] = (),
    constants: Sequence[core.Var] = (),
) -> core.Jaxpr:
    """Builds a jaxpr of equations; the values of its constants, which it closes over, aren't kept in it."""
    operands, results = list(operands), list(results)
    described = getattr(linear_util, "DebugInfo", None)
    others: dict[str, Any] = {}
    if described is not None:
        others["debug_info"] = described("planned", "planned", ("",) * len(operands), ("",) * len(results))
    if constants and "consts" in inspect.signature(core.Jaxpr.__init__).parameters:
        others["consts"] = [None] * len(constants)  # without values they would be operands
    return core.Jaxpr(list(constants), operands, results, list(equations), set(effects), **others)


def new_variable(aval: core.AbstractValue) -> core.Var:
    """Makes a jaxpr variable of the given abstract value that is equal to no other variable."""
    named: Callable[..., core.Var] = core.Var
    return named("", aval) if "suffix" in inspect.signature(core.Var.__init__).parameters else named(aval)


def bound(equation: core.JaxprEqn, operands: Iterable[Any]) -> Sequence[Any]:
    """Returns the results of an equation of a jaxpr on operands."""
    params: Any = equation.primitive.get_bind_params(equation.params)
    functions, params = params if isinstance(params, tuple) else ((), params)
    results = equation.primitive.bind(*functions, *operands, **params)
    return results if equation.primitive.multiple_results else [results]


def wrapped_function(value: Any) -> Any:
    """Returns the function that jax has wrapped, as the rules of derivatives are, or the value itself."""
    if isinstance(getattr(value, "__self__", None), linear_util.WrappedFun):
        value = value.__self__
    return value.f if isinstance(value, linear_util.WrappedFun) else value


def asks_to_be_inlined(params: Mapping[str, Any]) -> bool:
    """Returns whether a jitted function's call is one that jax inlines: until 0.6 or so when it is traced."""
    asked = params.get("inline", False)
    return asked if isinstance(asked, bool) else asked.value.startswith("jax")


def scan_operands(params: Mapping[str, Any]) -> tuple[int, int]:
    """Returns how many operands of a scan are constants, and how many are carried from turn to turn."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = map(len, params["ft_in"].unpack())
    return constants, carried


def without_dead_code(
    jaxpr: core.Jaxpr, wanted: list[bool], keep_operands: bool | list[bool] = False
) -> tuple[core.Jaxpr, list[bool]]:
    """Returns a jaxpr without what its wanted results don't need, and which operands are left."""
    return partial_eval.dce_jaxpr(jaxpr, wanted, instantiate=keep_operands)


@contextlib.contextmanager
def gradients_by(differentiate: Callable[..., Any]) -> Iterator[None]:
    """Has all reverse-mode gradients of a `with` block taken by a function in the place of `jax.vjp`: its arguments are
    jax's own way, a function, its operands, and whether that function has an auxiliary result. jax's caches of traced
    functions are kept apart: what is traced in the block isn't found outside of it. Raises RuntimeError if this version
    of jax takes gradients in another way.
    """
    # Until 0.8 or so, `jax.vjp` and `jax.value_and_grad` share an inner function, whose `fun` is wrapped.
    owners = [api] if hasattr(api, "_vjp") else [api, jax]
    name = "_vjp" if hasattr(api, "_vjp") else "vjp"
    original = getattr(api, name)
    if tuple(inspect.signature(original).parameters)[:3] != ("fun", "primals", "has_aux"):
        raise RuntimeError(
            f"jax {jax.__version__} takes gradients in a way that isn't known; install one of {', '.join(TRIED)}"
        )

    def vjp(fun: Any, *primals: Any, has_aux: bool = False, **others: Any) -> Any:
        return differentiate(lambda *args, **kwargs: original(*args, **others, **kwargs), fun, primals, has_aux)

    for owner in owners:
        setattr(owner, name, vjp)
    try:
        with config.random_seed_offset(0x0A17A):
            yield
    finally:
        for owner in owners:
            setattr(owner, name, original)
