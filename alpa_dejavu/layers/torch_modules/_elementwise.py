"""ATen's operators on each element of their operands, as functions of jax arrays and Python numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def _add(x: Any, other: Any, *, alpha: float = 1) -> Any:
    return x + other if alpha == 1 else x + alpha * other


def _sub(x: Any, other: Any, *, alpha: float = 1) -> Any:
    return x - other if alpha == 1 else x - alpha * other


def _div(x: Any, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return x / other
    return jnp.floor_divide(x, other) if rounding_mode == "floor" else jnp.trunc(x / other)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - ATen's names
    return jnp.clip(x, min, max)


def _gelu(x: Any, *, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _where(condition: Any, x: Any, other: Any) -> Any:
    return jnp.where(condition, x, other)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, value, x)


def _dropout(x: Any, p: float, train: bool) -> Any:
    """Draws by one fixed key: nothing that is planned depends on what is drawn."""
    if not train or not p:
        return x
    return jnp.where(jax.random.bernoulli(jax.random.PRNGKey(0), 1 - p, x.shape), x / (1 - p), 0)


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "abs": jnp.abs,
    "neg": jnp.negative,
    "exp": jnp.exp,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "rsqrt": jax.lax.rsqrt,
    "square": jnp.square,
    "reciprocal": lambda x: 1 / x,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "tanh": jnp.tanh,
    "erf": jax.lax.erf,
    "sigmoid": jax.nn.sigmoid,
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
    "gelu": _gelu,
    "softplus": lambda x, beta=1, threshold=20: jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta),
    "leaky_relu": jax.nn.leaky_relu,
    "relu6": jax.nn.relu6,
    "hardtanh": lambda x, low=-1, high=1: jnp.clip(x, low, high),
    "dropout": _dropout,
    "native_dropout": lambda x, p, train: (_dropout(x, p, train), jnp.ones(x.shape, bool)),
    "add": _add,
    "sub": _sub,
    "rsub": lambda x, other, *, alpha=1: _sub(other, x, alpha=alpha),
    "mul": jnp.multiply,
    "div": _div,
    "floor_divide": jnp.floor_divide,
    "remainder": jnp.remainder,
    "pow": jnp.power,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "logical_not": jnp.logical_not,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "bitwise_not": jnp.bitwise_not,
    "bitwise_and": jnp.bitwise_and,
    "bitwise_or": jnp.bitwise_or,
    "__and__": jnp.bitwise_and,
    "__or__": jnp.bitwise_or,
    "where": _where,
    "masked_fill": _masked_fill,
}
"""Each by its name without its overload: how an operator treats numbers in the place of arrays follows from jax."""
