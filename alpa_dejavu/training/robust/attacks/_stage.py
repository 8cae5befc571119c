"""Faults before there is a gradient: wrong labels, and a machine that computes one stage wrongly."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["flipped_labels", "wrong_stage"]


def flipped_labels(targets: Any, classes: int) -> Any:
    """Returns wrong labels for right ones: the last class for the first one, and so on.

    >>> flipped_labels(jnp.array([0, 3, 9]), 10).tolist()
    [9, 6, 0]
    """
    return classes - 1 - targets


@jax.custom_vjp
def wrong_stage(values: Any, forward: Any, backward: Any) -> Any:
    """Returns a stage's activations times a factor; the signal that comes back through here is multiplied, too.

    Put where a stage's activations leave it, it is a machine that computes this stage wrongly: stages after it have
    wrong inputs, stages before it a wrong signal, as has the stage itself.

    Args:
        values: activations.
        forward: the factor of the activations; 1 is right.
        backward: the factor of the signal; 1 is right.
    """
    return values * forward


def _forward(values: Any, forward: Any, backward: Any) -> Any:
    return values * forward, (forward, backward)


def _backward(kept: Any, signal: Any) -> Any:
    forward, backward = kept
    return signal * backward, jnp.zeros_like(forward), jnp.zeros_like(backward)


wrong_stage.defvjp(_forward, _backward)
