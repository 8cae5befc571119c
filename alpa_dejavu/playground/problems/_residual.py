"""Handwritten digits of 8 x 8 pixels by a residual network, of which whole blocks may be left out.

References:
    He, Zhang, Ren and Sun, Deep Residual Learning for Image Recognition, CVPR 2016.
    De and Smith, Batch Normalization Biases Residual Blocks Towards the Identity Function, NeurIPS 2020 (blocks that
    begin as the identity, without normalization).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.playground.job import Problem
from alpa_dejavu.playground.problems._digits import affine, classified, dense

__all__ = ["digits_residual"]

_CHANNELS, _PLACES = 16, 4
_UNITS = 32, 32, 32


def digits_residual(*units: int) -> Problem:
    """Returns digits by a residual network: a convolution, three blocks of 16, 32 and 16 channels, and 10 classes."""
    units = units or _UNITS
    names = tuple((f"block {n} in", f"block {n} out") for n, count in enumerate(units, 1) if count)

    def init(key: Any) -> Any:
        keys = jax.random.split(key, len(units) + 2)
        made = {"stem": dense(keys[0], 9, _CHANNELS), "out": dense(keys[1], _CHANNELS * _PLACES, 10)}
        for (into, out), count, each in zip(names, filter(None, units), keys[2:], strict=False):
            made |= {into: dense(each, 9 * _CHANNELS, count),
                     out: {"bias": jnp.zeros(_CHANNELS), "kernel": jnp.zeros((9 * count, _CHANNELS))}}  # fmt: skip
        return made

    def logits(params: Any, inputs: Any) -> Any:
        made = _pooled(jax.nn.relu(_convolved(params["stem"], inputs[..., None])))
        for into, out in names:
            made = made + _convolved(params[out], jax.nn.relu(_convolved(params[into], made)))
        return affine(params["out"], _pooled(jax.nn.relu(made)).reshape(len(inputs), _CHANNELS * _PLACES))

    return classified("digits-residual", init, logits, (), lambda widths: digits_residual(*widths), names)


def _convolved(part: Any, images: Any) -> Any:
    """A convolution of 3 x 3 as one product of matrices, which many workers' parameters are quick side by side by."""
    _, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    near = [padded[:, y : y + height, x : x + width] for y in range(3) for x in range(3)]
    return affine(part, jnp.concatenate(near, axis=-1))


def _pooled(images: Any) -> Any:
    count, height, width, channels = images.shape
    return images.reshape(count, height // 2, 2, width // 2, 2, channels).mean(axis=(2, 4))
