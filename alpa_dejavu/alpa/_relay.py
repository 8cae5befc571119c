"""A pipeline of one device a stage that computes nothing, which tells what the runtime takes for its own work."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from alpa_dejavu.alpa._profile import profile
from alpa_dejavu.problem import Cluster, MeshConfig, Plan, Run, Submesh

_WIDTH, _LAYERS, _MICRO_BATCHES, _STEPS = 16, 4, 4, 3


def relay_seconds(cluster: Cluster, num_bytes: int) -> dict[str, float]:
    """Measures a pipeline of two stages, on the two devices that Alpa is connected to, that pass on a tensor of so many
    bytes; returns mean seconds: "dispatch_s" of a forward or backward, "step_s" of what a stage does once a step,
    "send_s" of a transfer.
    """
    plan = _plan(cluster, _relay, max(num_bytes // (4 * _WIDTH), 1), _LAYERS, 2)
    stages = profile(plan, (), _STEPS, _relay).stages
    first, last = stages[0], stages[-1]
    # A large tensor may be there before its sender is done with sending it.
    sends = first.forward_post_s + first.forward_send_s, last.backward_post_s + last.backward_send_s
    return {
        "dispatch_s": statistics.fmean(part for stage in stages for part in (stage.forward_s, stage.backward_s)),
        "step_s": statistics.fmean(stage.per_step_s for stage in stages),
        "send_s": statistics.fmean(sends),
    }


def _plan(cluster: Cluster, model: Callable[..., Any], rows: int, layers: int, stages: int) -> Plan:
    """Stages of one device each with equally many layers, for micro-batches of so many rows."""
    from alpa_dejavu.layers import trace
    from alpa_dejavu.planning import GivenStage, estimate
    from alpa_dejavu.sharding import model_of_step

    described = model_of_step(trace(model, batch=rows), layers)
    config = MeshConfig((1, 1), 1, 1, {"force_batch_dim_to_mesh_dim": 0})
    stage_layers = layers // stages
    slicing = [
        GivenStage(first, first + stage_layers - 1, Submesh(1, 1), config) for first in range(0, layers, stage_layers)
    ]
    batch = rows * _MICRO_BATCHES
    return estimate(described, cluster, Run(_MICRO_BATCHES), slicing, name="small", batch=batch).plan


def _relay(batch_size: int) -> Any:
    """A model that computes next to nothing with what its layers pass on."""
    import jax
    import jax.numpy as jnp

    def train_step(weights: Any, batch: Any) -> Any:
        def loss(weights: Any) -> Any:
            x = batch["x"]
            for weight in weights:
                x = x @ weight
            return jnp.mean((x - batch["y"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return [weight - 0.1 * gradient for weight, gradient in zip(weights, gradients, strict=True)], value

    weights = [jax.ShapeDtypeStruct((_WIDTH, _WIDTH), jnp.float32)] * _LAYERS
    data = jax.ShapeDtypeStruct((batch_size, _WIDTH), jnp.float32)
    return train_step, (weights, {"x": data, "y": data})
