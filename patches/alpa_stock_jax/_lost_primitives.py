"""Call primitives that jax no longer has.

Alpa wraps layers in `named_call` equations, so that one runs and lowers as a plain call does. No program that is traced
today contains the other; Alpa only compares with it.
"""

from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src.interpreters import mlir

__all__ = ["named_call_p", "remat_call_p"]

named_call_p = core.CallPrimitive("named_call")
named_call_p.def_impl(core.call_impl)
remat_call_p = core.CallPrimitive("remat_call")


def _named_call_lowering(ctx: Any, *args: Any, name: str, call_jaxpr: core.Jaxpr, **params: Any) -> Any:
    return mlir.core_call_lowering(ctx, *args, name=name, call_jaxpr=call_jaxpr)


mlir.register_lowering(named_call_p, _named_call_lowering)
