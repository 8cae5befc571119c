"""Small Krakens and the standard transformer of as many parameters: their sizes, their training step, and their text.

The text is that of `parallel_initialization.py`: sources of Python's standard library, character by character, the last
fifth of each file for validation.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from alpa_dejavu.layers.models import Kraken, KrakenModule
from races._data import CHARACTERS, Data, source_text

WAYS = (1, 2, 4)
"""One way is the standard transformer."""
HEADS, BLOCKS, LENGTH, LEAST_WIDTH = 4, 4, 64, 64
ALIKE = 0.01
"""By how much the numbers of parameters may differ."""
OPTIMIZER = optax.adam(1.0, eps=1e-6)
"""At a rate of one, by which steps multiply their own. The epsilon keeps rounding errors of small gradients small."""
State = tuple[Any, Any]
Step = Callable[..., tuple[State, Any]]


@functools.cache
def sizes() -> dict[int, Kraken]:
    """By ways: the narrowest standard transformer for which all other ways have a width with as many parameters."""
    for hidden in itertools.count(LEAST_WIDTH, HEADS):
        found = {1: _size(hidden, 1)}
        aim = parameters(found[1])
        for ways in WAYS[1:]:
            widths = range(HEADS // ways, hidden, HEADS // ways)
            found[ways] = min((_size(one, ways) for one in widths), key=lambda one: abs(parameters(one) - aim))
        if all(abs(parameters(one) / aim - 1) <= ALIKE for one in found.values()):
            return found
    raise AssertionError("wider ones come ever nearer")


def _size(hidden: int, ways: int) -> Kraken:
    return Kraken(hidden, BLOCKS, HEADS, ways, 4 if ways == 1 else 2, CHARACTERS, LENGTH)


def parameters(size: Kraken) -> int:
    """The number of parameters of a `KrakenModule`."""
    width, wide = size.hidden, size.expansion
    # Query, key, value, their output and two products of the feed-forward layer, with biases; two normalisations.
    block = (4 + 2 * wide) * width**2 + (9 + wide) * width
    joined = size.ways * width**2 + width if size.ways > 1 else 0
    return (size.vocabulary + size.sequence + 2) * width + size.num_blocks * size.ways * block + joined


def text() -> Data:
    """Runs of characters; another release of Python has another text, and its `mark` tells them apart."""
    return source_text(LENGTH)


def name_of(size: Kraken) -> str:
    """As tables have it."""
    return "standard" if size.ways == 1 else f"Kraken of {size.ways} ways"


def fresh(size: Kraken, seed: int) -> State:
    """Parameters before training, and the optimizer's state."""
    first = jnp.zeros((1, LENGTH), jnp.int32)
    made = jax.jit(KrakenModule(size).init)(jax.random.PRNGKey(seed), first)["params"]
    return made, OPTIMIZER.init(made)


def loss_of(size: Kraken) -> Callable[[Any, Any], Any]:
    """The mean cross-entropy of the next characters in nats, given parameters, and characters with their next ones."""

    def loss(made: Any, data: Any) -> Any:
        log_p = jax.nn.log_softmax(KrakenModule(size).apply({"params": made}, data[0]))
        return -(jax.nn.one_hot(data[1], CHARACTERS) * log_p).sum(-1).mean()

    return loss


def step_of(size: Kraken, value_and_grad: Callable[..., Any]) -> Step:
    """A training step by `jax.value_and_grad` or Alpa's: the state after it, and the loss before.

    It takes the state, characters with their next ones, and the learning rate.
    """

    def step(state: State, data: Any, rate: Any) -> tuple[State, Any]:
        made, inner = state
        loss, gradients = value_and_grad(lambda made: loss_of(size)(made, data))(made)
        updates, inner = OPTIMIZER.update(gradients, inner)
        return (jax.tree.map(lambda old, by: old + rate * by, made, updates), inner), loss

    return step
