"""A transformer block, run once in two sizes: what a compiled program reaches of a device's peaks.

Single operators run at their peak; the same operators in a program that the compiler fused and laid out by its own
rules don't. Two sizes tell the two reasons apart: a factor on everything, and a time for each kernel.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, final

from alpa_dejavu.problem import Device, Operators

__all__ = ["Probe", "fit", "probes"]

_HIDDEN, _HEADS, _LENGTH = 128, 4, 64
_BATCHES = (1, 8)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Probe:
    """A program: what is known of its operators, and what runs it once, to its end."""

    operators: Operators
    run: Callable[[], object]


def probes() -> list[Probe]:
    """The gradient of a transformer block for a small and a larger batch, compiled for jax's default device."""
    return [_probe(batch) for batch in _BATCHES]


def fit(device: Device, predicted_s: list[float], kernels: list[float], measured_s: list[float]) -> Device:
    """The device with its rates lowered, and the time of a kernel raised, to what two probes took.

    Args:
        device: whose peaks made the predictions.
        predicted_s: by the roofline, without the kernels' starts; of the smaller probe first.
        kernels: how many each starts.
        measured_s: on one device that has its rates to itself.

    Raises:
        ValueError: the larger probe isn't larger.
    """
    if predicted_s[1] <= predicted_s[0]:
        raise ValueError(f"probes: the larger is predicted at {predicted_s[1]} s, the smaller at {predicted_s[0]} s")
    # A program is never faster than its roofline, and a kernel never starts sooner than measured alone.
    slope = (measured_s[1] - measured_s[0]) / (predicted_s[1] - predicted_s[0])
    factor = max(slope, 1.0)
    kernel_s = max((measured_s[0] - factor * predicted_s[0]) / kernels[0], device.kernel_s)
    return dataclasses.replace(
        device,
        flop_per_s={dtype: rate / factor for dtype, rate in device.flop_per_s.items()},
        vector_flop_per_s=device.vector_flop_per_s / factor,
        memory_bytes_per_s=device.memory_bytes_per_s / factor,
        kernel_s=kernel_s,
    )


def _probe(batch: int) -> Probe:
    import jax
    import numpy as np

    from alpa_dejavu.features import layer_features

    rng = np.random.default_rng(0)
    shapes = {"query": (1, 1), "key": (1, 1), "value": (1, 1), "output": (1, 1), "widen": (1, 4), "narrow": (4, 1)}
    weights = {
        name: rng.normal(0, 0.05, (rows * _HIDDEN, columns * _HIDDEN)).astype(np.float32)
        for name, (rows, columns) in shapes.items()
    }
    x = rng.normal(0, 1, (batch, _LENGTH, _HIDDEN)).astype(np.float32)
    gradient = jax.grad(_loss, argnums=(0, 1))
    jaxpr = jax.make_jaxpr(gradient)(weights, x).jaxpr
    parameters = jaxpr.invars[: len(weights)]
    given = jax.device_put((weights, x))
    compiled = jax.jit(gradient).lower(*given).compile()
    features = layer_features(jaxpr, parameters, (), [v for v in jaxpr.outvars if not hasattr(v, "val")])
    return Probe(features.operators, functools.partial(_run, compiled, given))


def _run(compiled: Any, given: Any) -> None:
    import jax

    jax.block_until_ready(compiled(*given))


def _loss(weights: Any, x: Any) -> Any:
    """The sum of squares of what a pre-norm transformer block makes of x, (batch, length, hidden)."""
    import jax
    import jax.numpy as jnp

    def norm(y: Any) -> Any:
        centred = y - y.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-6)

    batch, length, hidden = x.shape
    normed = norm(x)
    query, key, value = (
        (normed @ weights[name]).reshape(batch, length, _HEADS, -1) for name in ("query", "key", "value")
    )
    attention = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", query, key) * (hidden // _HEADS) ** -0.5)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", attention, value).reshape(batch, length, hidden)
    x = x + mixed @ weights["output"]
    x = x + jax.nn.gelu(norm(x) @ weights["widen"]) @ weights["narrow"]
    return (x * x).sum()
