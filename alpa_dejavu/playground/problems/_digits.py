"""Handwritten digits of 8 x 8 pixels (1797 of them, in scikit-learn), by a small network and by a convolutional one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.playground.job import Problem

__all__ = ["digits_cnn", "digits_mlp"]

_HELD_OUT = 360


def digits_mlp() -> Problem:
    """Returns digits by a network of 64 inputs, 32 hidden units and 10 classes."""
    def init(key: Any) -> Any:
        first, second = jax.random.split(key)
        return {"hidden": _dense(first, 64, 32), "out": _dense(second, 32, 10)}

    def logits(params: Any, inputs: Any) -> Any:
        return _affine(params["out"], jax.nn.relu(_affine(params["hidden"], inputs.reshape(len(inputs), 64))))

    return _classified("digits-mlp", init, logits)


def digits_cnn() -> Problem:
    """Returns digits by two convolutions of 3 x 3 with 8 and 16 channels, each pooled, and 10 classes."""
    def init(key: Any) -> Any:
        keys = jax.random.split(key, 3)
        return {"first": _dense(keys[0], 9, 8), "second": _dense(keys[1], 72, 16), "out": _dense(keys[2], 64, 10)}

    def convolved(part: Any, images: Any) -> Any:
        channels = images.shape[-1]
        kernel = part["kernel"].reshape(3, 3, channels, -1)
        made = jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        made = jax.nn.relu(made + part["bias"])
        count, height, width, depth = made.shape
        return made.reshape(count, height // 2, 2, width // 2, 2, depth).mean(axis=(2, 4))

    def logits(params: Any, inputs: Any) -> Any:
        made = convolved(params["second"], convolved(params["first"], inputs[..., None]))
        return _affine(params["out"], made.reshape(len(inputs), 64))

    return _classified("digits-cnn", init, logits)


def _classified(name: str, init: Any, logits: Any) -> Problem:
    def loss(params: Any, batch: Any) -> Any:
        inputs, targets = batch
        return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits(params, inputs)) * jax.nn.one_hot(targets, 10), axis=-1))

    def accuracy(params: Any, batch: Any) -> Any:
        inputs, targets = batch
        return jnp.mean(jnp.argmax(logits(params, inputs), axis=-1) == targets)

    images, targets = _digits()
    train, held_out = (images[_HELD_OUT:], targets[_HELD_OUT:]), (images[:_HELD_OUT], targets[:_HELD_OUT])
    return Problem(name, init, loss, accuracy, train, held_out, logits=logits)


def _digits() -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    return (data.images[order] / 16).astype(np.float32), data.target[order].astype(np.int32)


def _dense(key: Any, inputs: int, outputs: int) -> Any:
    return {"bias": jnp.zeros(outputs), "kernel": jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5}


def _affine(part: Any, inputs: Any) -> Any:
    return inputs @ part["kernel"] + part["bias"]
