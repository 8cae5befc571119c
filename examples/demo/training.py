"""The job: what is trained, on how many devices, and the training step, for Alpa and for one device alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from demo.model import GPT, GPTConfig
from demo.text import VOCABULARY

__all__ = ["Job", "create_state", "largest_relative_difference", "make_train_step", "train_on_one_device"]

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Job:
    """Everything that decides what is computed."""

    config: GPTConfig = dataclasses.field(default_factory=GPTConfig)
    batch_size: int = 16
    micro_batches: int = 4
    layers: int = 4
    devices: int = 4
    steps: int = 120
    learning_rate: float = 3e-3
    seed: int = 0


def create_state(job: Job) -> TrainState:
    """Fresh parameters and an Adam optimizer."""
    model = GPT(job.config)
    example = jnp.zeros((1, job.config.length), dtype=jnp.int32)
    params = model.init(jax.random.PRNGKey(job.seed), example)
    # The epsilon keeps rounding errors small: with the usual 1e-8 a gradient of almost nothing moves a weight fully.
    return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(job.learning_rate, eps=1e-6))


def make_train_step(value_and_grad: Callable[..., Any]) -> Callable[[TrainState, Batch], tuple[TrainState, jax.Array]]:
    """A training step by `jax.value_and_grad`, or by Alpa's, which marks where gradients are added up."""

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, jax.Array]:
        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn(params, batch["inputs"])
            targets = jax.nn.one_hot(batch["targets"], VOCABULARY)
            return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))

        value, gradients = value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    return train_step


def train_on_one_device(state: TrainState, data: list[Batch]) -> tuple[Any, list[float]]:
    """Plain jax, no Alpa: the parameters after one step for each batch, and the losses (nats)."""
    step = jax.jit(make_train_step(jax.value_and_grad))
    losses = []
    for batch in data:
        state, loss = step(state, batch)
        losses.append(float(loss))
    return jax.device_get(state.params), losses


def largest_relative_difference(actual: Any, expected: Any) -> float:
    """For each tensor the norm of the difference over the norm of the expected one; the largest of them."""

    def difference(ours: Any, theirs: Any) -> float:
        theirs = np.asarray(theirs, dtype=np.float64)
        return float(np.linalg.norm(np.asarray(ours, dtype=np.float64) - theirs) / np.linalg.norm(theirs))

    return max(jax.tree_util.tree_leaves(jax.tree_util.tree_map(difference, actual, expected)))
