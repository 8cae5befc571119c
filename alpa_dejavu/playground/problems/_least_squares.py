"""Least squares with few non-zeros in each row."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from alpa_dejavu.playground.job import Problem

__all__ = ["sparse_least_squares"]


def sparse_least_squares(rows: int = 4096, columns: int = 256, non_zeros: int = 4, seed: int = 0) -> Problem:
    """Returns half the mean squared error of a linear model, whose rows have a few non-zero entries, and noise.

    An input is a row as pairs of (column, value), shape (non_zeros, 2); what it is judged by are its training rows.

    Args:
        rows: the number of samples.
        columns: the number of parameters.
        non_zeros: how many entries of a row aren't zero.
        seed: of the data.
    """
    draw = np.random.default_rng(seed)
    chosen = np.stack([draw.choice(columns, non_zeros, replace=False) for _ in range(rows)])
    values = draw.standard_normal((rows, non_zeros)).astype(np.float32)
    truth = draw.standard_normal(columns).astype(np.float32)
    targets = (values * truth[chosen]).sum(axis=1) + 0.1 * draw.standard_normal(rows).astype(np.float32)
    inputs = np.stack([chosen.astype(np.float32), values], axis=-1)

    def init(key: Any) -> Any:
        del key
        return jnp.zeros(columns)

    def loss(params: Any, batch: Any) -> Any:
        pairs, wanted = batch
        outputs = jnp.sum(params[pairs[..., 0].astype(jnp.int32)] * pairs[..., 1], axis=-1)
        return 0.5 * jnp.mean(jnp.square(outputs - wanted))

    def coordinates(pairs: Any) -> Any:
        return pairs[..., 0].astype(np.int64)

    data = inputs, targets.astype(np.float32)
    return Problem("sparse-least-squares", init, loss, None, data, data, coordinates)
