"""A transformer block, run once in two sizes: what a compiled program reaches of a device's peaks.

Matrix products and plain loops run at their peak in a program too. Exponentials don't: XLA's CPU compiler fuses them
into the loops of all that use them, where they are evaluated again. Two sizes of the block tell what they take from
what each kernel does.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from alpa_dejavu.latency._analytic import AnalyticLatency
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
    traced = [_traced(batch) for batch in _BATCHES]
    with concurrent.futures.ThreadPoolExecutor(len(traced)) as pool:
        compiled = list(pool.map(lambda one: one.lowered.compile(), traced))
    return [
        Probe(one.operators, functools.partial(_run, program, one.given))
        for one, program in zip(traced, compiled, strict=True)
    ]


def fit(device: Device, operators: Sequence[Operators], measured_s: Sequence[float]) -> Device:
    """The device with the cost of a transcendental and the time of a kernel raised to what two probes took.

    Args:
        device: with the peaks of single operators.
        operators: of two probes, the smaller one first.
        measured_s: what they took, on one device that has its rates to itself.

    Raises:
        ValueError: the larger probe isn't larger.
    """
    (less, few), (more, many) = (_parts(one, device) for one in operators)
    if many <= few:
        raise ValueError(f"probes: the larger one evaluates {many} transcendentals, the smaller {few}")
    # A program is never faster than its roofline, and a kernel never starts sooner than measured alone.
    each_s = (measured_s[1] - measured_s[0] - (more - less)) / (many - few)
    each_s = max(each_s, device.transcendental_flop / device.vector_flop_per_s)
    kernels = float(((operators[0].written_bytes > 0) * operators[0].count).sum())
    kernel_s = max((measured_s[0] - less - each_s * few) / kernels, device.kernel_s)
    return dataclasses.replace(device, transcendental_flop=each_s * device.vector_flop_per_s, kernel_s=kernel_s)


def _parts(operators: Operators, device: Device) -> tuple[float, float]:
    """Seconds without transcendentals and starts of kernels, and how many transcendentals there are."""
    plain = dataclasses.replace(operators, transcendental=np.zeros(len(operators)))
    seconds = AnalyticLatency().predict(plain, dataclasses.replace(device, kernel_s=0.0)).total_s
    return seconds, float(operators.transcendental @ operators.count)


class _Traced(NamedTuple):
    """A program, lowered for the device that its arguments are on."""

    operators: Operators
    lowered: Any
    given: Any


def _traced(batch: int) -> _Traced:
    import jax

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
    features = layer_features(jaxpr, parameters, (), [v for v in jaxpr.outvars if not hasattr(v, "val")])
    return _Traced(features.operators, jax.jit(gradient).lower(*given), given)


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
