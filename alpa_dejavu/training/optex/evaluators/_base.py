"""The interface of evaluators: points in, the true gradients there out."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks

__all__ = ["Evaluated", "Evaluator", "gradient_of_point"]


class Evaluated(NamedTuple):
    """The gradients of N points.

    Attributes:
        losses: shape [N].
        gradients: a pytree like the parameters, leaves [N, *shape].
        noise: for each leaf the variance of the gradient, all its coordinates together, shape [N]; None: it isn't
            known.
        has_arrived: which points are there at all, shape [N]; None: all.
    """

    losses: Any
    gradients: Any
    noise: Any = None
    has_arrived: Any = None


class Evaluator(abc.ABC):
    """A place where the gradients of N points are computed."""

    @abc.abstractmethod
    def evaluate(self, points: Any, batches: Any, count: Any) -> Evaluated:
        """Returns the losses and gradients at points.

        Args:
            points: a pytree like the parameters, leaves [N, *shape].
            batches: a pytree with leaves [N, ...], a batch for each point; None: the loss needs none.
            count: how many of the points matter, from the first on: others needn't be evaluated.
        """


def gradient_of_point(loss: Callable[[Any, Any], Any], replicas: int) -> Callable[[Any, Any], Any]:
    """Returns a function of a point and its batch to the loss, the gradient, and the gradient's variance by leaf.

    Args:
        loss: the mean loss of parameters on a batch.
        replicas: into how many parts a batch is cut, of which the variance is estimated; 1: it isn't.
    """
    checks.count("evaluator", "replicas", replicas)
    if replicas == 1:
        return lambda point, batch: (*jax.value_and_grad(loss)(point, batch), None)

    def part(x: Any) -> Any:
        if x.shape[0] % replicas:
            raise ValueError(f"batch is {x.shape[0]} samples, but must divide by the {replicas} replicas; take another "
                             "batch size")  # fmt: skip
        return x.reshape(replicas, x.shape[0] // replicas, *x.shape[1:])

    def of_parts(point: Any, batch: Any) -> Any:
        parts = jax.tree_util.tree_map(part, batch)
        losses, each = jax.vmap(jax.value_and_grad(loss), (None, 0))(point, parts)
        mean = jax.tree_util.tree_map(lambda g: jnp.mean(g, axis=0), each)
        noise = jax.tree_util.tree_map(
            lambda g, m: jnp.sum((g - m).astype(jnp.float32) ** 2) / (replicas * (replicas - 1)), each, mean
        )
        return jnp.mean(losses), mean, noise

    return of_parts
