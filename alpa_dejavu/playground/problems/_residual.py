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
from alpa_dejavu.playground.problems._digits import affine, classified, convolved, dense, pooled

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
        made = pooled(jax.nn.relu(convolved(params["stem"], inputs[..., None])))
        for into, out in names:
            made = made + convolved(params[out], jax.nn.relu(convolved(params[into], made)))
        return affine(params["out"], pooled(jax.nn.relu(made)).reshape(len(inputs), _CHANNELS * _PLACES))

    return classified("digits-residual", init, logits, (), lambda widths: digits_residual(*widths), names)
