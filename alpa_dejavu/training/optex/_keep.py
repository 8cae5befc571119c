"""The choice of how much of a walk is kept, by the losses at its points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

__all__ = ["KEEP", "kept_steps"]

_DESCENT = 1e-4
"""The share of the descent along the first gradient that a line check asks for, as Armijo's rule has it."""


def kept_steps(keep: str, is_valid: Any, losses: Any, descents: Any) -> Any:
    """Returns how many steps of a walk are kept: 1 is the optimizer's own step; 0 where no point is valid.

    Args:
        keep: one of `KEEP`.
        is_valid: which points have a finite gradient, shape [N].
        losses: at the points, shape [N].
        descents: the product of the first gradient and the way from the first point, shape [N].
    """
    return jnp.where(jnp.any(is_valid), KEEP[keep](is_valid, losses, descents) + 1, 0)


def _last(is_valid: Any, losses: Any, descents: Any) -> Any:
    del losses, descents
    return len(is_valid) - 1 - jnp.argmax(is_valid[::-1])


def _lowest(is_valid: Any, losses: Any, descents: Any) -> Any:
    del descents
    return jnp.argmin(jnp.where(is_valid, losses, jnp.inf))


def _line(is_valid: Any, losses: Any, descents: Any) -> Any:
    """The last one that is as low as Armijo's rule asks; the first valid one is."""
    first = jnp.argmax(is_valid)
    passed = is_valid & (losses <= losses[first] + _DESCENT * descents)
    return _last(passed | (jnp.arange(len(is_valid)) == first), losses, descents)


KEEP: dict[str, Callable[[Any, Any, Any], Any]] = {"last": _last, "lowest": _lowest, "line": _line}
