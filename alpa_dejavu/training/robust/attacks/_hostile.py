"""Attacks by somebody who means it, and whose strength can be tuned."""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import column
from alpa_dejavu.training.robust.attacks._base import Attack, replaced, right_mean


@final
@dataclasses.dataclass(frozen=True)
class SignFlip(Attack):
    """Each wrong replica sends its own gradient times -strength."""

    strength: Any = 1.0

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        return replaced(gradients, wrong, jax.tree_util.tree_map(lambda x: -self.strength * x, gradients)), ()


@final
@dataclasses.dataclass(frozen=True)
class CopiedSignFlip(Attack):
    """All wrong replicas send the first one's gradient times -strength: they agree with each other."""

    strength: Any = 1.0

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        first = wrong & (jnp.cumsum(wrong) == 1)
        copied = jax.tree_util.tree_map(
            lambda x: -self.strength * jnp.sum(jnp.where(column(first, x), x, 0), axis=0), gradients
        )
        return replaced(gradients, wrong, copied), ()


@final
@dataclasses.dataclass(frozen=True)
class Gaussian(Attack):
    """Wrong replicas send noise of the right ones' root mean square times strength."""

    strength: Any = 10.0

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        leaves, tree = jax.tree_util.tree_flatten(gradients)
        keys = jax.random.split(key, len(leaves))
        drawn = [self.strength * jnp.sqrt(jnp.mean(jnp.square(x))) * jax.random.normal(one, x.shape)
                 for one, x in zip(keys, leaves, strict=True)]  # fmt: skip
        return replaced(gradients, wrong, jax.tree_util.tree_unflatten(tree, drawn)), ()


@final
@dataclasses.dataclass(frozen=True)
class InnerProduct(Attack):
    """Wrong replicas send the right ones' mean times -strength (IPM): even a little turns a small mean around.

    References:
        Xie, Koyejo and Gupta, Fall of Empires, UAI 2019.
    """

    strength: Any = 0.5

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        turned = jax.tree_util.tree_map(lambda x: -self.strength * x, right_mean(gradients, wrong))
        return replaced(gradients, wrong, turned), ()


@final
@dataclasses.dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """Wrong replicas send the right ones' mean less strength standard deviations in each coordinate (ALIE).

    References:
        Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019.
    """

    strength: Any = 1.5

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        right = jnp.maximum(jnp.sum(~wrong) - 1, 1)

        def shifted(x: Any, mean: Any) -> Any:
            square = jnp.sum(jnp.where(column(wrong, x), 0, jnp.square(x - mean)), axis=0) / right
            return mean - self.strength * jnp.sqrt(square)

        return replaced(gradients, wrong, jax.tree_util.tree_map(shifted, gradients, right_mean(gradients, wrong))), ()


@final
@dataclasses.dataclass(frozen=True)
class Mimic(Attack):
    """Wrong replicas send what the first right one sends: that one counts too much, which hurts on unlike data.

    References:
        Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022.
    """

    def send(self, gradients: Any, wrong: jax.Array, key: jax.Array, state: Any = None) -> tuple[Any, Any]:
        first = ~wrong & (jnp.cumsum(~wrong) == 1)
        copied = jax.tree_util.tree_map(lambda x: jnp.sum(jnp.where(column(first, x), x, 0), axis=0), gradients)
        return replaced(gradients, wrong, copied), ()
