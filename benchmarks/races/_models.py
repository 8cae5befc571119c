"""Four small networks as flax makes them, with the weights that flax gives them, and their training steps;
and real data that packages ship, cut into training and test in the same way each time.

Learning rates are those with which one start of the network itself comes lowest in its steps, of a few that were tried
with seeds that nothing is judged by.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SOURCES = ("argparse.py", "ast.py", "difflib.py", "doctest.py", "inspect.py", "pydoc.py", "tarfile.py", "typing.py")
"""Files of Python's standard library, whose text is learned."""
TEST_PART = 0.2
CHARACTERS = 97
"""Printable ASCII, the end of a line, and all others as one."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """Inputs and labels to learn from, others to be tested by, and a hash of all."""

    inputs: NDArray[Any]
    labels: NDArray[Any]
    test_inputs: NDArray[Any]
    test_labels: NDArray[Any]

    @functools.cached_property
    def mark(self) -> str:
        parts = self.inputs, self.labels, self.test_inputs, self.test_labels
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:12]


@functools.cache
def digits() -> Data:
    """scikit-learn's handwritten digits, shape (N, 8, 8, 1), from 0 to 1, and which they are."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    train, test, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int32), test_size=TEST_PART, random_state=0, stratify=labels
    )
    return Data(train, train_labels, test, test_labels)


@functools.cache
def source_text(length: int) -> Data:
    """Runs of characters of Python's own sources, shape (N, length), and the character after each of them.

    The last fifth of each file is for the test.
    """
    parts: tuple[list[NDArray[Any]], list[NDArray[Any]]] = ([], [])
    for name in SOURCES:
        codes = _codes((Path(sysconfig.get_paths()["stdlib"]) / name).read_bytes())
        cut = int(len(codes) * (1 - TEST_PART))
        for part, piece in zip(parts, (codes[:cut], codes[cut:]), strict=True):
            count = (len(piece) - 1) // length
            part.append(np.stack([piece[: count * length], piece[1 : count * length + 1]]).reshape(2, count, length))
    train, test = (np.concatenate(part, axis=1) for part in parts)
    return Data(train[0], train[1], test[0], test[1])


def _codes(text: bytes) -> NDArray[np.int32]:
    read = np.frombuffer(text, np.uint8).astype(np.int32)
    printable = (read >= 32) & (read < 127)
    return np.where(printable, read - 30, np.where(read == ord("\n"), 1, 0)).astype(np.int32)


def batch(data: Data, rows: int, seed: int, step: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """So many rows at random: the first ones of a larger batch of the same seed and step are those of a smaller one."""
    chosen = np.random.default_rng([seed, step]).integers(len(data.inputs), size=rows)
    return data.inputs[chosen], data.labels[chosen]


LENGTH = 16
"""The characters of one sample of text."""
TEST_ROWS = 1000
"""At most."""


class Perceptron(nn.Module):
    """Three dense layers."""

    widths: tuple[int, ...] = (64, 64)

    @nn.compact
    def __call__(self, images: Any) -> Any:
        """Logits, shape (B, 10)."""
        x = images.reshape(images.shape[0], -1)
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(10)(x)


class Convolutions(nn.Module):
    """Two convolutions and two dense layers."""

    @nn.compact
    def __call__(self, images: Any) -> Any:
        """Logits, shape (B, 10)."""
        x = images
        for channels in (8, 16):
            x = nn.relu(nn.Conv(channels, (3, 3), strides=(2, 2))(x))
        x = nn.relu(nn.Dense(32)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


class Transformer(nn.Module):
    """A decoder of two blocks."""

    width: int = 32

    @nn.compact
    def __call__(self, text: Any) -> Any:
        """Logits, shape (B, L, V), of the next characters."""
        x = nn.Embed(CHARACTERS, self.width)(text) + nn.Embed(LENGTH, self.width)(jnp.arange(text.shape[1]))
        mask = nn.make_causal_mask(text)
        for _ in range(2):
            x = x + nn.MultiHeadDotProductAttention(num_heads=4)(nn.LayerNorm()(x), mask=mask)
            x = x + nn.Dense(self.width)(nn.gelu(nn.Dense(2 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(CHARACTERS)(nn.LayerNorm()(x))


class Recurrent(nn.Module):
    """One layer of plain recurrence."""

    width: int = 64

    @nn.compact
    def __call__(self, text: Any) -> Any:
        """Logits, shape (B, L, V), of the next characters."""
        x = nn.RNN(nn.SimpleCell(self.width))(nn.Embed(CHARACTERS, 32)(text))
        return nn.Dense(CHARACTERS)(x)


@final
@dataclasses.dataclass(frozen=True)
class Task:
    """A job to train: a network of flax on data, by "sgd" with momentum or "adam", in batches, for so many steps."""

    network: nn.Module
    data: Callable[[], Data]
    optimizer: str
    rate: float
    rows: int
    steps: int

    def at(self, rate: float) -> Task:
        """The same at another learning rate."""
        return _at(self, rate)

    @functools.cached_property
    def init_fn(self) -> Callable[[Any], TrainState]:
        """As `parallel_initialize` takes it."""
        optimizer, example = self._optimizer(), self.data().inputs[:1]

        def init_fn(key: Any) -> TrainState:
            parameters = self.network.init(key, example)["params"]
            return TrainState.create(apply_fn=self.network.apply, params=parameters, tx=optimizer)

        return init_fn

    @functools.cached_property
    def train_step(self) -> Callable[[TrainState, Any], Any]:
        """As `parallel_initialize` takes it."""

        def train_step(state: TrainState, batch: Any) -> tuple[TrainState, Any, Any]:
            def loss_fn(parameters: Any) -> Any:
                logits = state.apply_fn({"params": parameters}, batch[0])
                return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

            loss, gradients = jax.value_and_grad(loss_fn)(state.params)
            updates, moments = state.tx.update(gradients, state.opt_state, state.params)
            weights = optax.apply_updates(state.params, updates)
            new = state.replace(step=state.step + 1, params=weights, opt_state=moments)
            return new, loss, optax.global_norm(gradients)

        return train_step

    @functools.cached_property
    def _logits(self) -> Callable[[Any, Any], Any]:
        return jax.jit(lambda parameters, inputs: self.network.apply({"params": parameters}, inputs))

    def accuracy(self, state: TrainState) -> float:
        """Which part of the test is told right."""
        data = self.data()
        # From all files of a text, not the first alone.
        rows = slice(None, None, -(-len(data.test_inputs) // TEST_ROWS))
        told = np.asarray(self._logits(state.params, data.test_inputs[rows])).argmax(axis=-1)
        return float((told == data.test_labels[rows]).mean())

    def _optimizer(self) -> optax.GradientTransformation:
        return optax.sgd(self.rate, momentum=0.9) if self.optimizer == "sgd" else optax.adam(self.rate)


@functools.cache
def _at(task: Task, rate: float) -> Task:
    return dataclasses.replace(task, rate=rate)


_TEXT = functools.partial(source_text, LENGTH)
TASKS = {
    "mlp": Task(Perceptron(), digits, "sgd", 0.03, 32, 300),
    "cnn": Task(Convolutions(), digits, "sgd", 0.03, 32, 300),
    "gpt": Task(Transformer(), _TEXT, "adam", 0.01, 16, 400),
    "rnn": Task(Recurrent(), _TEXT, "adam", 0.01, 16, 400),
}
