"""Call primitives that jax no longer has: no traced program contains them, but Alpa looks for them by name."""

from __future__ import annotations

from jax._src.core import CallPrimitive

__all__ = ["named_call_p", "remat_call_p"]

named_call_p = CallPrimitive("named_call")
remat_call_p = CallPrimitive("remat_call")
