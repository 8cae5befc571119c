"""The network, its data and its training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

BATCH_SIZE = 32


class Network(nn.Module):
    """Two convolutions and two dense layers."""

    @nn.compact
    def __call__(self, images: Any) -> Any:
        """Logits, shape (B, 10), of images, shape (B, 8, 8, 1)."""
        x = images
        for channels in (16, 32):
            x = nn.relu(nn.Conv(channels, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


@dataclasses.dataclass(frozen=True, eq=False)
class Digits:
    """Images of shape (N, 8, 8, 1), from 0 to 1, and labels."""

    images: NDArray[np.float32]
    labels: NDArray[np.int32]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int32]

    def batches(self, epochs: int, seed: int = 0) -> list[tuple[NDArray[np.float32], NDArray[np.int32]]]:
        """Every image once an epoch, in another order each time, but for a rest that is no batch."""
        generator, found = np.random.default_rng(seed), []
        for _ in range(epochs):
            order = generator.permutation(len(self.images))
            for begin in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
                rows = order[begin : begin + BATCH_SIZE]
                found.append((self.images[rows], self.labels[rows]))
        return found

    def accuracy(self, parameters: Any, network: nn.Module | None = None) -> float:
        """The fraction of the test images that is told right, by this module's network or another one."""
        logits = (network or Network()).apply({"params": parameters}, self.test_images)
        return float((np.asarray(logits).argmax(axis=1) == self.test_labels).mean())


def digits(most: int | None = None) -> Digits:
    """The data set, or so many training images of it."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    train, test, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int32), test_size=0.2, random_state=0, stratify=labels
    )
    return Digits(train[:most], train_labels[:most], test, test_labels)


def init_and_step(learning_rate: float = 0.01) -> tuple[Callable[[Any], TrainState], Callable[[TrainState, Any], Any]]:
    """What `parallel_initialize` asks for: SGD with momentum on the cross-entropy."""
    optimizer = optax.sgd(learning_rate, momentum=0.9)

    def init_fn(key: Any) -> TrainState:
        parameters = Network().init(key, jnp.zeros((1, 8, 8, 1)))["params"]
        return TrainState.create(apply_fn=Network().apply, params=parameters, tx=optimizer)

    def train_step(state: TrainState, batch: Any) -> tuple[TrainState, Any, Any]:
        def loss_fn(parameters: Any) -> Any:
            logits = state.apply_fn({"params": parameters}, batch[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, gradients = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=gradients), loss, optax.global_norm(gradients)

    return init_fn, train_step
