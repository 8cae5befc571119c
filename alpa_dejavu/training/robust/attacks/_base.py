"""The interface of attacks."""

from __future__ import annotations

import abc
from typing import Any

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import column, mean_of

__all__ = ["Attack", "replaced", "right_mean"]


class Attack(abc.ABC):
    """A way in which wrong replicas' gradients differ from the right ones; attackers know all right gradients."""

    @abc.abstractmethod
    def send(self, gradients: Any, wrong: Any, key: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients that all replicas send, and the state for the next call.

        Args:
            gradients: those that all replicas have computed rightly, a pytree with leaves [N, ...].
            wrong: which replicas send others, boolean, shape [N].
            key: a jax random key.
            state: that of the last call; None: there was none.
        """


def replaced(gradients: Any, wrong: Any, others: Any) -> Any:
    """Returns gradients in which the wrong replicas have others, of leaves [N, ...] or [...]."""
    return jax.tree_util.tree_map(
        lambda x, y: jnp.where(column(wrong, x), jnp.asarray(y, x.dtype), x), gradients, others
    )


def right_mean(gradients: Any, wrong: Any) -> Any:
    """Returns the mean of the right replicas' gradients."""
    return mean_of(gradients, ~wrong)
