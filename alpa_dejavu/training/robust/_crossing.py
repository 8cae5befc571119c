"""Statistics of activations and signals where they cross between stages: they are the gradient by a slot."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["OTHERS", "SHARES", "tap"]

SHARES, OTHERS = slice(2, -1), 3
"""The statistics: the mean and the mean square, then the shares below quantiles, and at last the size."""
_ROWS = 64
_ROW_MOST = 2.0
"""How large a row may be, over the median row; one that is larger is scaled down."""


@jax.custom_vjp
def tap(values: Any, slot: Any) -> Any:
    """Returns values [..., F]; their statistics, and the signal's, are the gradient by the slot [2, K, F]."""
    del slot
    return values


def _forward(values: Any, slot: Any) -> Any:
    return values, (_statistics(values, slot[0]), slot[1])


def _backward(kept: Any, signal: Any) -> Any:
    of_values, slot = kept
    return signal, jnp.stack([of_values, _statistics(signal, slot)])


tap.defvjp(_forward, _backward)


def _statistics(values: Any, slot: Any) -> Any:
    """The statistics [K, F] of values [..., F]; the last one is the logarithm of a median row's size."""
    rows = values.reshape(-1, values.shape[-1])
    rows = rows[:: max(len(rows) // _ROWS, 1)].astype(jnp.float32)
    large = jnp.sqrt(jnp.mean(jnp.square(rows), axis=1, keepdims=True))
    # Rows of padding are zeros: they say nothing of the size.
    usual = jnp.nan_to_num(jnp.nanmedian(jnp.where(large > 0, large, jnp.nan)))
    rows = rows * jnp.minimum(1, _ROW_MOST * usual / jnp.where(large == 0, 1, large))
    below = jnp.mean(rows[:, None] < slot[None, SHARES], axis=0)
    return jnp.concatenate([jnp.mean(rows, axis=0)[None], jnp.mean(jnp.square(rows), axis=0)[None], below,
                            jnp.full((1, rows.shape[1]), jnp.log(usual + 1e-30))])  # fmt: skip
