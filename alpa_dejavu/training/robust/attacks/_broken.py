"""Faults of machines that mean nothing by it: values that aren't finite, flipped bits, old gradients, none."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust.attacks._base import Attack, replaced

__all__ = ["BitFlip", "NotFinite", "Stale", "Zero"]

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

    def send(self, gradients: Any, wrong: Any, key: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients with the value."""
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

    def send(self, gradients: Any, wrong: Any, key: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients with flipped bits."""
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

    def send(self, gradients: Any, wrong: Any, key: Any, state: Any = None) -> tuple[Any, Any]:
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

    def send(self, gradients: Any, wrong: Any, key: Any, state: Any = None) -> tuple[Any, Any]:
        """Returns the gradients with zeros."""
        return replaced(gradients, wrong, jax.tree_util.tree_map(jnp.zeros_like, gradients)), ()
