"""The derivative of the held-out loss after a step by the shares of what the step mixes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground.job import Problem

__all__ = ["look_ahead_gradient"]

Floats = NDArray[np.float64]


def look_ahead_gradient(problem: Problem, params: NDArray[np.float32], displacements: NDArray[np.float32],
                        shares: Floats, held_out: Any, train: Any = None) -> Floats:  # fmt: skip
    """Returns the derivative of the held-out loss after a look-ahead by each option's share, shape (K,).

    A step with shares q instead of p would have come to x(q) = params + sum over o of (q_o - p_o) displacements[o].
    To first order the loss there is meant. To second order it is the loss after one more step, down the training
    loss: at x(q) - r(q) * gradient of the training loss at x(q), with r(q) = sum of q_o * r_o. An option's rate r_o is
    the one at which its displacement is nearest to a step down the training loss at `params`. JAX differentiates
    through that step, so that the training loss's curvature counts.

    Args:
        problem: the model.
        params: those that the step with the present shares has come to, shape (P,).
        displacements: by which each option moves the parameters, shape (K, P).
        shares: the present ones, shape (K,).
        held_out: a batch of held-out samples, inputs and targets.
        train: a batch of training samples for the second order; None: first order.

    References:
        Liu, Simonyan and Yang, DARTS: Differentiable Architecture Search, ICLR 2019.
    """
    args = params, displacements, shares.astype(np.float32), held_out
    first, second = _programs(problem)
    return np.asarray(first(*args) if train is None else second(*args, train), np.float64)


@functools.lru_cache(maxsize=8)
def _programs(problem: Problem) -> tuple[Any, Any]:
    """Returns the compiled derivatives of first and of second order."""
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    _, tree = ravel_pytree(problem.init(jax.random.PRNGKey(0)))

    def loss(params: Any, batch: Any) -> Any:
        return problem.loss(tree(params), batch)

    def first(params: Any, displacements: Any, shares: Any, held_out: Any) -> Any:
        return jax.grad(lambda q: loss(params + (q - shares) @ displacements, held_out))(shares)

    def second(params: Any, displacements: Any, shares: Any, held_out: Any, train: Any) -> Any:
        slope = jax.grad(loss)(params, train)
        rates = -(displacements @ slope) / jnp.maximum(slope @ slope, 1e-30)

        def after(q: Any) -> Any:
            now = params + (q - shares) @ displacements
            return loss(now - (q @ rates) * jax.grad(loss)(now, train), held_out)

        return jax.grad(after)(shares)

    return jax.jit(first), jax.jit(second)
