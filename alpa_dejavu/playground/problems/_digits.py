"""Handwritten digits of 8 x 8 pixels (1797, in scikit-learn), by small networks: plain, convolutional, residual.

References:
    He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016.
    De and Smith, Batch Normalization Biases Residual Blocks Towards the Identity Function, NeurIPS 2020 (blocks that
    begin as the identity, without normalization).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground.job import Problem

__all__ = ["digits_cnn", "digits_mlp", "digits_residual", "digits_wide_cnn"]

_HELD_OUT = 360
_WIDE = 32, 64


def digits_mlp(units: int = 32) -> Problem:
    """Returns digits by a network of 64 inputs, 32 hidden units and 10 classes."""
    def init(key: Any) -> Any:
        first, second = jax.random.split(key)
        return {"hidden": dense(first, 64, units), "out": dense(second, units, 10)}

    def logits(params: Any, inputs: Any) -> Any:
        hidden = jax.nn.relu(affine(params["hidden"], inputs.reshape(len(inputs), 64)))
        return affine(params["out"], hidden)

    return classified("digits-mlp", init, logits, ("hidden", "out"), lambda widths: digits_mlp(*widths))


def digits_cnn(first: int = 8, second: int = 16) -> Problem:
    """Returns digits by two convolutions of 3 x 3 with 8 and 16 channels, each pooled, and 10 classes."""
    chain = "first", "second", "out"

    def init(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        return {"first": dense(keys[0], 9, first), "second": dense(keys[1], 9 * first, second),
                "out": dense(keys[2], 4 * second, 10)}  # fmt: skip

    def logits(params: Any, inputs: Any) -> Any:
        images = inputs[..., None]
        for name in chain[:-1]:
            images = pooled(jax.nn.relu(convolved(params[name], images)))
        return affine(params["out"], images.reshape(len(inputs), 4 * second))

    name = "digits-wide-cnn" if (first, second) == _WIDE else "digits-cnn"
    return classified(name, init, logits, chain, lambda widths: digits_cnn(*widths))


def digits_wide_cnn() -> Problem:
    """Returns digits by the convolutions of digits-cnn, with four times as many channels."""
    return digits_cnn(*_WIDE)


def classified(name: str, init: Any, logits: Any, chain: tuple[str, ...], narrowed: Any,
               blocks: tuple[tuple[str, str], ...] = ()) -> Problem:  # fmt: skip
    """Returns digits by a network that puts out the logits of their classes."""
    def loss(params: Any, batch: Any) -> Any:
        inputs, targets = batch
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits(params, inputs)) * jax.nn.one_hot(targets, 10), axis=-1))

    def accuracy(params: Any, batch: Any) -> Any:
        inputs, targets = batch
        return jnp.mean(jnp.argmax(logits(params, inputs), axis=-1) == targets)

    images, targets = _digits()
    return Problem(
        name, init, loss, accuracy, (images[_HELD_OUT:], targets[_HELD_OUT:]),
        (images[:_HELD_OUT], targets[:_HELD_OUT]), chain=chain, blocks=blocks, narrowed=narrowed,
        logits=logits,
    )  # fmt: skip


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.images[order] / 16).astype(np.float32), data.target[order].astype(np.int32)


def dense(key: Any, inputs: int, outputs: int) -> Any:
    """Returns drawn parameters of an affine layer."""
    return {"bias": jnp.zeros(outputs), "kernel": jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5}


def affine(part: Any, inputs: Any) -> Any:
    """Returns an affine layer's outputs."""
    return inputs @ part["kernel"] + part["bias"]


def convolved(part: Any, images: Any) -> Any:
    """Returns a convolution of 3 x 3, as one product: many workers' parameters are quick side by side by it."""
    _, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    near = [padded[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    return affine(part, jnp.concatenate(near, axis=-1))


def pooled(images: Any) -> Any:
    """Returns the means of 2 x 2 pixels."""
    count, height, width, channels = images.shape
    return images.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))


_CHANNELS, _PLACES = 16, 4
_UNITS = 32, 32, 32


def digits_residual(*units: int) -> Problem:
    """Returns digits by a residual network: a convolution, three blocks of 16, 32 and 16 channels, and 10 classes."""
    units = units or _UNITS
    names = tuple((f"block {n} in", f"block {n} out") for n, count in enumerate(units, 1) if count)

    def init(key: Any) -> Any:
        keys = jax.random.split(key, len(units) + 2)
        parts = {"stem": dense(keys[0], 9, _CHANNELS), "out": dense(keys[1], _CHANNELS * _PLACES, 10)}
        for (into, out), count, each in zip(names, filter(None, units), keys[2:], strict=False):
            parts |= {into: dense(each, 9 * _CHANNELS, count),
                      out: {"bias": jnp.zeros(_CHANNELS), "kernel": jnp.zeros((9 * count, _CHANNELS))}}  # fmt: skip
        return parts

    def logits(params: Any, inputs: Any) -> Any:
        images = pooled(jax.nn.relu(convolved(params["stem"], inputs[..., None])))
        for into, out in names:
            images = images + convolved(params[out], jax.nn.relu(convolved(params[into], images)))
        return affine(params["out"], pooled(jax.nn.relu(images)).reshape(len(inputs), _CHANNELS * _PLACES))

    return classified("digits-residual", init, logits, (), lambda widths: digits_residual(*widths), names)
