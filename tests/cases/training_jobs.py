"""Small training jobs of four kinds, for comparing parallel with single-device training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from demo.model import GPT, GPTConfig
from demo.text import VOCABULARY

Batch = dict[str, np.ndarray]
Loss = Callable[[Any, Batch], jax.Array]
STEPS = 5


@dataclasses.dataclass(frozen=True)
class TrainingJob:
    """What is trained: fresh parameters, the loss, and a batch for each step."""

    init: Callable[[], Any]
    loss: Loss
    batches: tuple[Batch, ...]


def mlp() -> TrainingJob:
    model = nn.Sequential([layer for _ in range(4) for layer in (nn.Dense(64), nn.relu)])
    batches = _batches(lambda rng: {"x": rng.normal(size=(32, 64)), "y": rng.normal(size=(32, 64))})

    def loss(params: Any, batch: Batch) -> jax.Array:
        return jnp.mean((model.apply(params, batch["x"]) - batch["y"]) ** 2)

    return TrainingJob(lambda: model.init(jax.random.PRNGKey(0), batches[0]["x"]), loss, batches)


def gpt() -> TrainingJob:
    model = GPT(GPTConfig(blocks=2, hidden=64, heads=4, length=32))
    batches = _batches(lambda rng: {name: rng.integers(0, VOCABULARY, (8, 32)) for name in ("x", "y")})
    return TrainingJob(
        lambda: model.init(jax.random.PRNGKey(0), batches[0]["x"]),
        lambda params, batch: _cross_entropy(model.apply(params, batch["x"]), batch["y"]),
        batches,
    )


def moe() -> TrainingJob:
    from alpa.model.moe import FlaxMoEForLMModule, MoEConfig

    vocabulary, length = 128, 16
    config = MoEConfig(
        num_hidden_layers=2, hidden_size=32, intermediate_size=128, num_attention_heads=4, vocab_size=vocabulary,
        max_position_embeddings=length, expert_group_size=32, expert_number=4,
    )  # fmt: skip
    model = FlaxMoEForLMModule(config, dtype=jnp.float32)
    ones = np.ones((8, length), dtype=np.int32)
    batches = _batches(lambda rng: {name: rng.integers(0, vocabulary, (8, length)) for name in ("x", "y")})

    def init() -> Any:
        return model.init(jax.random.PRNGKey(0), ones, ones, ones, ones)

    def loss(params: Any, batch: Batch) -> jax.Array:
        x = batch["x"]
        ones = jnp.ones_like(x)
        positions = jnp.broadcast_to(jnp.arange(length), x.shape)
        return _cross_entropy(model.apply(params, x, ones, ones, positions, deterministic=True)[0], batch["y"])

    return TrainingJob(init, loss, batches)


def wide_resnet() -> TrainingJob:
    from alpa.model.wide_resnet import ResNet, ResNetBlock

    model = ResNet(
        stage_sizes=[1, 1], block_cls=ResNetBlock, num_classes=16, num_filters=16, width_factor=1, dtype=jnp.float32
    )
    batches = _batches(lambda rng: {"x": rng.normal(size=(16, 32, 32, 3)), "y": rng.integers(0, 16, 16)})

    def loss(params: Any, batch: Batch) -> jax.Array:
        # Statistics of the batch are used, as in training; the running ones aren't part of what is differentiated.
        logits, _ = model.apply(params, batch["x"], mutable=["batch_stats"])
        return _cross_entropy(logits, batch["y"])

    return TrainingJob(lambda: model.init(jax.random.PRNGKey(0), batches[0]["x"]), loss, batches)


JOBS = {"mlp": mlp, "gpt": gpt, "moe": moe, "wide_resnet": wide_resnet}


def optimizer() -> optax.GradientTransformation:
    return optax.sgd(0.05, momentum=0.9)


def fresh_parameters(job: TrainingJob) -> Any:
    """Parameters without exact zeros: a zero that has no gradient stays rounding error, relative to itself."""
    rng = np.random.default_rng(7)
    return jax.tree_util.tree_map(
        lambda p: np.asarray(p + 0.01 * rng.normal(size=p.shape), dtype=np.float32), job.init()
    )


def make_step(job: TrainingJob, value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(params: Any, momentum: Any, batch: Batch) -> tuple[Any, Any, jax.Array]:
        loss, gradients = value_and_grad(job.loss)(params, batch)
        updates, momentum = optimizer().update(gradients, momentum, params)
        return optax.apply_updates(params, updates), momentum, loss

    return train_step


def with_frozen_layers(job: TrainingJob) -> TrainingJob:
    """The same job with parameters in two parts, of which only the last layers are to be trained."""

    def init() -> Any:
        layers = sorted(job.init()["params"].items())
        half = len(layers) // 2
        return {"frozen": dict(layers[:half]), "trained": dict(layers[half:])}

    def loss(params: Any, batch: Batch) -> jax.Array:
        return job.loss({"params": {**params["frozen"], **params["trained"]}}, batch)

    return TrainingJob(init, loss, job.batches)


def make_frozen_step(job: TrainingJob, value_and_grad: Callable[..., Any]) -> Callable[..., Any]:
    """A step of `with_frozen_layers`: no gradients, no momenta and no backward pass for what is frozen."""

    def train_step(params: Any, momentum: Any, batch: Batch) -> tuple[Any, Any, jax.Array]:
        def loss_of_trained(trained: Any) -> jax.Array:
            return job.loss({**params, "trained": trained}, batch)

        loss, gradients = value_and_grad(loss_of_trained)(params["trained"])
        updates, trained_momentum = optimizer().update(gradients, momentum, params["trained"])
        trained = optax.apply_updates(params["trained"], updates)
        return {**params, "trained": trained}, trained_momentum, loss

    return train_step


def train(job: TrainingJob, step: Callable[..., Any]) -> tuple[Any, list[float]]:
    """The parameters after all batches, and the losses."""
    params = fresh_parameters(job)
    trained = params.get("trained", params)
    momentum = jax.tree_util.tree_map(np.asarray, optimizer().init(trained))
    losses = []
    for batch in job.batches:
        params, momentum, loss = step(params, momentum, batch)
        losses.append(float(np.asarray(loss)))
    return jax.tree_util.tree_map(np.asarray, params), losses


def _batches(draw: Callable[[np.random.Generator], dict[str, np.ndarray]]) -> tuple[Batch, ...]:
    rng = np.random.default_rng(0)

    def narrow(array: np.ndarray) -> np.ndarray:
        return array.astype(np.int32 if array.dtype.kind == "i" else np.float32)

    return tuple({name: narrow(array) for name, array in draw(rng).items()} for _ in range(STEPS))


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    targets = jax.nn.one_hot(labels, logits.shape[-1])
    return -jnp.mean(jnp.sum(targets * jax.nn.log_softmax(logits), axis=-1))
