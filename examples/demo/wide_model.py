"""A model with one large block: a table of embeddings, whose gradients are most of all, before blocks that compute."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp

__all__ = ["WideModel"]


@final
@dataclasses.dataclass(frozen=True)
class WideModel:
    """Sizes of the model; it is a function from a batch size to a train step with its arguments, as planning takes it.

    Attributes:
        vocabulary: rows of the table.
        width: of the table and of the blocks.
        blocks: perceptrons of one hidden layer, four times as wide.
        length: words of a sample.
    """

    vocabulary: int = 262144
    width: int = 1024
    blocks: int = 7
    length: int = 512

    def __call__(self, batch_size: int) -> tuple[Callable[..., Any], tuple[Any, Any]]:
        """Returns a step of gradient descent, and the shapes of its weights and of a batch."""
        weights = {
            "table": _floats(self.vocabulary, self.width),
            "blocks": [(_floats(self.width, 4 * self.width), _floats(4 * self.width, self.width))] * self.blocks,
            "head": _floats(self.width, 1),
        }
        return _step, (weights, jax.ShapeDtypeStruct((batch_size, self.length), jnp.int32))


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _step(weights: Any, words: Any) -> Any:
    gradients = jax.grad(_loss)(weights, words)
    return jax.tree_util.tree_map(lambda weight, gradient: weight - 1e-3 * gradient, weights, gradients)


def _loss(weights: Any, words: Any) -> Any:
    x = weights["table"][words]
    for ahead, back in weights["blocks"]:
        x = x + jax.nn.gelu(x @ ahead) @ back
    return (x.mean(axis=1) @ weights["head"]).mean()
