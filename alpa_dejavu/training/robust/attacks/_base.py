"""The interface of attacks."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust._arrays import column, mean_of


class Attack(abc.ABC):
    """A way in which wrong replicas' gradients differ from the right ones; attackers know all right gradients.

    An attack's `strength` is the factor that its first sentence names.
    """

    @abc.abstractmethod
    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients that all replicas send, and the state for the next call.

        Args:
            gradients: those that all replicas have computed rightly, a pytree with leaves [N, ...].
            wrong: which replicas send others, boolean, shape [N].
            key: a jax random key.
            state: that of the last call; None: there was none.
        """


def replaced(gradients: Any, wrong: jax.Array, others: Any) -> Any:
    """Returns gradients in which the wrong replicas have others, of leaves [N, ...] or [...]."""
    return jax.tree_util.tree_map(
        lambda x, y: jnp.where(column(wrong, x), jnp.asarray(y, x.dtype), x), gradients, others
    )


def right_mean(gradients: Any, wrong: jax.Array) -> Any:
    """Returns the mean of the right replicas' gradients."""
    return mean_of(gradients, ~wrong)


_WORDS = {"float32": jnp.uint32, "bfloat16": jnp.uint16, "float16": jnp.uint16}


@final
@dataclasses.dataclass(frozen=True)
class NotFinite(Attack):
    """Wrong replicas send a value that isn't finite in all coordinates.

    Attributes:
        value: "nan" or "inf".
    """

    value: str = "nan"

    def __post_init__(self) -> None:
        checks.one_of("not finite", "value", self.value, ("nan", "inf"))

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        return replaced(gradients, wrong, jax.tree_util.tree_map(lambda x: float(self.value), gradients)), ()


@final
@dataclasses.dataclass(frozen=True)
class BitFlip(Attack):
    """One bit is flipped of one drawn value of each leaf of each wrong replica.

    Attributes:
        position: the bit's number from the lowest, 0; in float32 bits 23 to 30 are the exponent, 31 the sign.
        dtype: the type in which the value is when its bit flips: "float32", "bfloat16" or "float16".
    """

    position: int = 30
    dtype: str = "float32"

    def __post_init__(self) -> None:
        checks.one_of("bit flip", "dtype", self.dtype, tuple(_WORDS))
        bits = jnp.dtype(_WORDS[self.dtype]).itemsize * 8
        if not 0 <= self.position < bits:
            raise ValueError(f"bit flip: position is {self.position}, but must be of 0..{bits - 1}; {self.dtype} has "
                             f"{bits} bits")  # fmt: skip

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        word = _WORDS[self.dtype]

        def flipped(x: Any, one: Any) -> Any:
            flat = x.reshape(len(x), -1).astype(self.dtype)
            chosen = jax.random.randint(one, (len(x), 1), 0, flat.shape[1]) == jnp.arange(flat.shape[1])
            bits = jax.lax.bitcast_convert_type(flat, word) ^ word(1 << self.position)
            other = jax.lax.bitcast_convert_type(bits, flat.dtype)
            return jnp.where(chosen, other, flat).astype(x.dtype).reshape(x.shape)

        leaves, tree = jax.tree_util.tree_flatten(gradients)
        made = [flipped(x, one) for x, one in zip(leaves, jax.random.split(key, len(leaves)), strict=True)]
        return replaced(gradients, wrong, jax.tree_util.tree_unflatten(tree, made)), ()


@final
@dataclasses.dataclass(frozen=True)
class Stale(Attack):
    """Wrong replicas send the gradients that they had some steps ago; in the first steps zeros.

    Attributes:
        steps: how many steps ago.
    """

    steps: int = 10

    def __post_init__(self) -> None:
        checks.count("stale", "steps", self.steps)

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients with old ones; the state has those of the last steps."""
        old = state
        if state is None:
            old = jax.tree_util.tree_map(lambda x: jnp.zeros((self.steps, *x.shape), x.dtype), gradients)
        kept = jax.tree_util.tree_map(lambda o, x: jnp.concatenate([o[1:], x[None]]), old, gradients)
        return replaced(gradients, wrong, jax.tree_util.tree_map(lambda o: o[0], old)), kept


@final
@dataclasses.dataclass(frozen=True)
class Zero(Attack):
    """Wrong replicas send zeros."""

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        return replaced(gradients, wrong, jax.tree_util.tree_map(jnp.zeros_like, gradients)), ()


def flipped_labels(targets: Any, classes: int) -> Any:
    """Returns wrong labels for right ones: the last class for the first one, and so on.

    >>> flipped_labels(jnp.array([0, 3, 9]), 10).tolist()
    [9, 6, 0]
    """
    return classes - 1 - targets


@jax.custom_vjp
def wrong_stage(values: Any, forward: Any, backward: Any) -> Any:
    """Returns a stage's activations times a factor; the signal that comes back through here is multiplied, too.

    Put where a stage's activations leave it, it is a machine that computes this stage wrongly: stages after it have
    wrong inputs, stages before it a wrong signal, as has the stage itself.

    Args:
        values: activations.
        forward: the factor of the activations; 1 is right.
        backward: the factor of the signal; 1 is right.
    """
    return values * forward


def _forward(values: Any, forward: Any, backward: Any) -> Any:
    return values * forward, (forward, backward)


def _backward(kept: Any, signal: Any) -> Any:
    forward, backward = kept
    return signal * backward, jnp.zeros_like(forward), jnp.zeros_like(backward)


wrong_stage.defvjp(_forward, _backward)
