"""The model: layers of a product and a tanh, and the passes of a chunk of them, backward whole or by its two parts.

A chunk's weights are one array of shape (layers, width, width); a micro-batch is of shape (rows, width).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = Any


class Kept(NamedTuple):
    """What a forward pass leaves for the backward pass: the chunk's input, and the results of all its layers."""

    x: Array
    results: Array


def weights_of(layers: int, width: int, seed: int) -> np.ndarray:
    """The weights of all layers, shape (layers, width, width)."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((layers, width, width)) / np.sqrt(width)).astype(np.float32)


def samples_of(count: int, rows: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of so many micro-batches, each of shape (count, rows, width)."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((2, count, rows, width)).astype(np.float32)
    return made[0], made[1]


@jax.jit
def forward(weights: Array, x: Array) -> Kept:
    """Runs a chunk."""

    def layer(x: Array, weight: Array) -> tuple[Array, Array]:
        y = jnp.tanh(x @ weight)
        return y, y

    return Kept(x, jax.lax.scan(layer, x, weights)[1])


@jax.jit
def loss_gradient(y: Array, target: Array) -> Array:
    """The gradient of half the mean square error."""
    return (y - target) / y.size


@jax.jit
def by_input(weights: Array, kept: Kept, given: Array) -> tuple[Array, Array]:
    """The gradient by a chunk's input, and those by what enters each layer's tanh, which its weights need."""

    def layer(given: Array, own: tuple[Array, Array]) -> tuple[Array, Array]:
        weight, y = own
        inner = given * (1 - y * y)
        return inner @ weight.T, inner

    return jax.lax.scan(layer, given, (weights, kept.results), reverse=True)


@jax.jit
def by_weight(gradients: Array, kept: Kept, inner: Array) -> Array:
    """The gradients of a chunk's weights, added to those before."""
    inputs = jnp.concatenate([kept.x[None], kept.results[:-1]])

    def layer(_: None, own: tuple[Array, Array, Array]) -> tuple[None, Array]:
        added, x, each = own
        return None, added + x.T @ each

    return jax.lax.scan(layer, None, (gradients, inputs, inner))[1]


@jax.jit
def backward(weights: Array, gradients: Array, kept: Kept, given: Array) -> tuple[Array, Array]:
    """Both at once."""
    before, inner = by_input(weights, kept, given)
    return before, by_weight(gradients, kept, inner)


@jax.jit
def updated(weights: Array, gradients: Array, rate: Array) -> Array:
    """The weights after a step of gradient descent."""
    return weights - rate * gradients


def gradients_on_one_device(weights: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The gradients of the sum of the micro-batches' losses, by `jax.grad` of the whole model."""

    def loss(weights: Array) -> Array:
        total = 0.0
        for x, target in zip(inputs, targets, strict=True):
            y = jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x, weights)[0]
            total = total + 0.5 * jnp.mean((y - target) ** 2)
        return total

    return np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(weights)))
