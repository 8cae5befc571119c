"""The computations of probe programs: for each name a function of its sizes.

That gives a function of weights and data, and the abstract values of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["PROGRAMS"]


def _floats(*shape: int) -> Any:
    import jax

    return jax.ShapeDtypeStruct(shape, np.float32)


def _tokens(*shape: int) -> Any:
    import jax

    return jax.ShapeDtypeStruct(shape, np.int32)


def _add(size: int) -> Any:
    return lambda _, x: x + 1, (), _floats(size)


def _tanh(size: int) -> Any:
    import jax.numpy as jnp

    return lambda _, x: jnp.tanh(x), (), _floats(size)


def _softmax(rows: int, length: int) -> Any:
    import jax

    return lambda _, x: jax.nn.softmax(x), (), _floats(rows, length)


def _transpose(rows: int, columns: int) -> Any:
    return lambda _, x: x.T + 1, (), _floats(rows, columns)


def _product(rows: int, inner: int, columns: int) -> Any:
    return lambda weight, x: x @ weight, _floats(inner, columns), _floats(rows, inner)


def _batched(batch: int, rows: int, inner: int) -> Any:
    import jax.numpy as jnp

    return lambda _, x: jnp.einsum("bqd,bkd->bqk", x, x), (), _floats(batch, rows, inner)


def _perceptron(batch: int, width: int, layers: int) -> Any:
    import jax

    def forward(weights: Any, x: Any) -> Any:
        for weight, bias in weights:
            x = jax.nn.relu(x @ weight + bias)
        return x

    return forward, [(_floats(width, width), _floats(width))] * layers, _floats(batch, width)


def _normal(x: Any) -> Any:
    import jax

    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)


def _block(batch: int, length: int, hidden: int) -> Any:
    """A pre-norm transformer block with four heads."""
    import jax
    import jax.numpy as jnp

    def forward(weights: Any, x: Any) -> Any:
        parts = jnp.split((_normal(x) @ weights["qkv"]).reshape(*x.shape[:2], 4, -1), 3, axis=-1)
        scores = jnp.einsum("bqhd,bkhd->bhqk", parts[0], parts[1]) / math.sqrt(hidden // 4)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, jnp.array(-1e4, scores.dtype))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), parts[2]).reshape(x.shape)
        x = x + mixed @ weights["out"]
        return x + jax.nn.gelu(_normal(x) @ weights["wide"]) @ weights["narrow"]

    weights = {
        "qkv": _floats(hidden, 3 * hidden),
        "out": _floats(hidden, hidden),
        "wide": _floats(hidden, 4 * hidden),
        "narrow": _floats(4 * hidden, hidden),
    }
    return forward, weights, _floats(batch, length, hidden)


def _convolution(batch: int, side: int, before: int, after: int) -> Any:
    """Two 3 x 3 convolutions; the first halves the sides."""
    import jax

    def forward(weights: Any, x: Any) -> Any:
        for kernel, stride in zip(weights, ((2, 2), (1, 1)), strict=True):
            layout = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, stride, "SAME", dimension_numbers=layout))
        return x

    kernels = [_floats(3, 3, before, after), _floats(3, 3, after, after)]
    return forward, kernels, _floats(batch, side, side, before)


def _head(tokens: int, hidden: int, vocabulary: int) -> Any:
    """Embedding, and the loss of a language model's last layer."""
    import jax
    import jax.numpy as jnp

    def forward(weights: Any, given: Any) -> Any:
        scores = jax.nn.log_softmax(_normal(weights["tokens"][given]) @ weights["head"])
        return -(jax.nn.one_hot(given, vocabulary) * scores).sum(-1).astype(jnp.float32)

    return forward, {"tokens": _floats(vocabulary, hidden), "head": _floats(hidden, vocabulary)}, _tokens(tokens)


def _momentum(size: int) -> Any:
    """The update of an optimizer with momentum."""

    def forward(state: Any, gradient: Any) -> Any:
        weight, momentum = state
        momentum = 0.9 * momentum + gradient
        return weight - 0.1 * momentum, momentum

    return forward, (_floats(size), _floats(size)), _floats(size)


def _adam(size: int) -> Any:
    """The update of Adam."""
    import jax.numpy as jnp

    def forward(state: Any, gradient: Any) -> Any:
        weight, first, second = state
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient * gradient
        return weight - 0.1 * first / (jnp.sqrt(second) + 1e-8), first, second

    return forward, (_floats(size),) * 3, _floats(size)


PROGRAMS: Mapping[str, Callable[..., Any]] = {
    "add": _add,
    "tanh": _tanh,
    "softmax": _softmax,
    "transpose": _transpose,
    "product": _product,
    "batched": _batched,
    "perceptron": _perceptron,
    "block": _block,
    "convolution": _convolution,
    "head": _head,
    "momentum": _momentum,
    "adam": _adam,
}
