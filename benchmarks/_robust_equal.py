"""Losses of robust gradients under Alpa against those of plain JAX."""

from __future__ import annotations

from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.training.robust import robust_value_and_grad, rule

__all__ = ["largest_differences"]

WIDTH, SAMPLES, STEPS = 64, 64, 10


def largest_differences() -> dict[str, float]:
    """Returns for each setting the largest relative difference of a step's loss from that of plain JAX."""
    found = {f"4 replicas, {n} micro-batches": _difference(4, n, False) for n in (1, 4)}
    with local_cluster(devices=4):
        alpa.init("ray")
        try:
            found |= {f"2 stages of 2 replicas, {n} micro-batches": _difference(2, n, True) for n in (1, 4)}
        finally:
            alpa.shutdown()
    return found


def _difference(replicas: int, micro_batches: int, staged: bool) -> float:
    draw = np.random.default_rng(0)
    params = {f"layer{n}": {"b": np.zeros(WIDTH, np.float32),
                            "w": draw.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 8}
              for n in range(4)}  # fmt: skip
    batches = [{name: draw.standard_normal((SAMPLES, WIDTH)).astype(np.float32) for name in "xy"} for _ in range(STEPS)]
    # A micro-batch is cut among all replicas: the plain step has each one's samples one after the other.
    cut = [{name: x.reshape(micro_batches, replicas, -1, WIDTH).swapaxes(0, 1).reshape(SAMPLES, WIDTH)
            for name, x in batch.items()} for batch in batches]  # fmt: skip
    known = rule("suspicion", wrong=1 if replicas > 2 else 0)
    if staged:
        method: Any = alpa.PipeshardParallel(
            num_micro_batches=micro_batches,
            layer_option=alpa.AutoLayerOption(2),
            stage_option=alpa.ManualStageOption([[0], [1]], [(1, 2), (1, 2)], [(2, 1), (2, 1)], [{}, {}]),
        )
    else:
        method = alpa.ShardParallel(devices=jax.local_devices()[:replicas], num_micro_batches=micro_batches)
    plain = robust_value_and_grad(_loss, known, replicas)
    alpas = robust_value_and_grad(_loss, known, replicas, value_and_grad=alpa.value_and_grad)
    step = alpa.parallelize(_step(alpas), method=method, donate_argnums=(), batch_argnums=(2,))
    expected = _losses(jax.jit(_step(plain)), params, plain.init(params), cut)
    made = _losses(step, params, alpas.init(params, offsets=staged), batches)
    return float(np.max(np.abs(np.divide(made, expected) - 1)))


def _loss(params: Any, batch: Any) -> Any:
    made = batch["x"]
    for layer in params.values():
        made = jnp.tanh(made @ layer["w"] + layer["b"])
    return jnp.mean((made - batch["y"]) ** 2)


def _step(gradient: Any) -> Any:
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, judged, state = gradient(params, batch, state)
        return jax.tree_util.tree_map(lambda p, g: p - 0.5 * g, params, judged.gradients), state, value

    return step


def _losses(step: Any, params: Any, state: Any, batches: list[Any]) -> list[float]:
    losses = []
    for batch in batches:
        params, state, value = step(params, state, batch)
        losses.append(float(np.asarray(value)))
    return losses
