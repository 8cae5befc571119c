"""Small models for measuring plans: model functions whose layers are alike or not, in single precision."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

Weights = Any
_OPTIMIZER = optax.sgd(1e-3, momentum=0.9)


def perceptron(batch: int, widths: Sequence[int]) -> Any:
    """Products from one width to the next, with a ReLU after each; the widths say how uneven the layers are."""

    def loss(weights: Weights, data: Any) -> jax.Array:
        x = data["x"]
        for weight, bias in weights:
            x = jax.nn.relu(x @ weight + bias)
        return jnp.mean((x - data["y"]) ** 2)

    weights = [(_floats(a, b), _floats(b)) for a, b in itertools.pairwise(widths)]
    return _training(loss, weights, {"x": _floats(batch, widths[0]), "y": _floats(batch, widths[-1])})


def language_model(batch: int, blocks: int, hidden: int, length: int, vocabulary: int, causal: bool = True) -> Any:
    """A transformer with four heads; feed-forward layers are four times as wide, the head is untied."""

    def loss(weights: Weights, data: Any) -> jax.Array:
        x = weights["tokens"][data["x"]]
        for block in weights["blocks"]:
            x = x + _attention(block, _normal(x), causal)
            x = x + jax.nn.gelu(_normal(x) @ block["wide"]) @ block["narrow"]
        scores = jax.nn.log_softmax(_normal(x) @ weights["head"])
        return -jnp.mean(jnp.sum(jax.nn.one_hot(data["y"], vocabulary) * scores, axis=-1))

    block = {
        "qkv": _floats(hidden, 3 * hidden),
        "out": _floats(hidden, hidden),
        "wide": _floats(hidden, 4 * hidden),
        "narrow": _floats(4 * hidden, hidden),
    }
    weights = {"tokens": _floats(vocabulary, hidden), "blocks": [block] * blocks, "head": _floats(hidden, vocabulary)}
    tokens = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    return _training(loss, weights, {"x": tokens, "y": tokens})


def mixer(batch: int, blocks: int, patches: int, hidden: int) -> Any:
    """Products along patches and along channels in turns (Tolstikhin et al., MLP-Mixer, 2021)."""

    def loss(weights: Weights, data: Any) -> jax.Array:
        x = data["x"]
        for along, across in weights:
            x = x + jnp.swapaxes(jax.nn.gelu(jnp.swapaxes(_normal(x), 1, 2) @ along[0]) @ along[1], 1, 2)
            x = x + jax.nn.gelu(_normal(x) @ across[0]) @ across[1]
        return jnp.mean((x - data["y"]) ** 2)

    def pair(width: int) -> tuple[Any, Any]:
        return _floats(width, 2 * width), _floats(2 * width, width)

    images = _floats(batch, patches, hidden)
    return _training(loss, [(pair(patches), pair(hidden))] * blocks, {"x": images, "y": images})


def convolutions(batch: int, side: int, channels: Sequence[int]) -> Any:
    """3 x 3 convolutions, each halving the sides of what it is given."""

    def loss(weights: Weights, data: Any) -> jax.Array:
        x = data["x"]
        for kernel in weights:
            x = jax.nn.relu(jax.lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=_NHWC))
        return jnp.mean((x.mean((1, 2)) - data["y"]) ** 2)

    weights = [_floats(3, 3, a, b) for a, b in itertools.pairwise(channels)]
    return _training(loss, weights, {"x": _floats(batch, side, side, channels[0]), "y": _floats(batch, channels[-1])})


_NHWC = ("NHWC", "HWIO", "NHWC")
_HEADS = 4


def _attention(block: Weights, x: jax.Array, causal: bool) -> jax.Array:
    batch, length, hidden = x.shape
    query, key, value = jnp.split((x @ block["qkv"]).reshape(batch, length, _HEADS, -1), 3, axis=-1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / math.sqrt(hidden // _HEADS)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value).reshape(x.shape) @ block["out"]


def _normal(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6)


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step of gradient descent with momentum on weights and momenta."""

    loss: Callable[[Weights, Any], jax.Array]
    __name__ = "train_step"

    def __call__(self, state: Any, batch: Any) -> Any:
        weights, momenta = state
        value, gradients = jax.value_and_grad(lambda trained: self.loss(trained, batch))(weights)
        updates, momenta = _OPTIMIZER.update(gradients, momenta, weights)
        return (optax.apply_updates(weights, updates), momenta), value


def _training(loss: Callable[[Weights, Any], jax.Array], weights: Weights, data: Any) -> Any:
    return _Step(loss), ((weights, jax.eval_shape(_OPTIMIZER.init, weights)), data)
