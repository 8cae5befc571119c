"""The seconds and bytes of a problem's gradient and update on a device, by the planner's own models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alpa_dejavu.costs import CostModels
from alpa_dejavu.problem import Device, Model

if TYPE_CHECKING:
    from alpa_dejavu.playground.job import Problem

__all__ = ["compute_bytes", "compute_seconds"]


def compute_seconds(problem: Problem, batch: int, device: Device, models: CostModels | None = None) -> float:
    """Returns the predicted seconds of one gradient of a problem and a plain update by it, on one device.

    Args:
        problem: the model and its data.
        batch: the samples of the gradient.
        device: the device.
        models: predict operators' latency; None: the analytic one, with what Alpa's runtime adds.
    """
    used = CostModels.named() if models is None else models
    layers = _described(problem, batch).layers
    every = [layer.operators(phase) for layer in layers for phase in ("forward", "backward", "step")]
    return sum(used.runtime.latency(used.latency.predict(one, device), one).total_s for one in every)


def compute_bytes(problem: Problem, batch: int) -> float:
    """Returns the bytes of memory that one gradient of a problem and a plain update by it take, as the planner counts
    them: parameters, gradients, and the most that lives at a time while they are computed.
    """
    described = _described(problem, batch)
    most = max(max(layer.forward_temporary_bytes, layer.backward_temporary_bytes) for layer in described.layers)
    return sum(tensor.num_bytes for tensor in described.tensors) + most


def _described(problem: Problem, batch: int) -> Model:
    import jax

    from alpa_dejavu.layers import trace
    from alpa_dejavu.sharding.solved import model_of_step

    inputs, targets = (each[:1].repeat(batch, axis=0) for each in problem.train)

    def step(params: Any, data: Any) -> Any:
        gradients = jax.grad(problem.loss)(params, data)
        return jax.tree.map(lambda value, gradient: value - 0.1 * gradient, params, gradients)

    params = problem.init(jax.random.PRNGKey(0))
    return model_of_step(trace(lambda: (step, (params, (inputs, targets)))), 1)
