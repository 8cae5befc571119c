"""Attacks and faults: the gradients, or activations, that wrong replicas send instead of theirs.

In: the gradients of N replicas, and which of them are wrong.
Out: the gradients that are sent.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias, final

import jax
import jax.numpy as jnp

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust._arrays import column, mean_of

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

    from alpa_dejavu.training.robust._arrays import Gradients, Which

    Sent: TypeAlias = tuple[Gradients, PyTree]

__all__ = ["ATTACKS", "Attack", "BitFlip", "Gaussian", "SignFlip", "Stale", "flipped_labels", "wrong_stage"]


class Attack:
    """A way in which wrong replicas' gradients differ from the right ones; attackers know all right gradients.

    An attack's `strength` is the factor that its first sentence names.
    """

    def send(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray, state: PyTree = None) -> Sent:
        """Returns what all replicas send, by what they rightly computed, and the next call's state."""
        return _replaced(gradients, wrong, self._wrong(gradients, wrong, key)), ()

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        """Returns what wrong replicas send, leaves [N, ...], of which the right ones' rows don't matter, or [...]."""
        raise NotImplementedError


def _replaced(gradients: Gradients, wrong: Which, others: PyTree) -> Gradients:
    return jax.tree.map(lambda x, y: jnp.where(column(wrong, x), jnp.asarray(y, x.dtype), x), gradients, others)


def _first_row(gradients: Gradients, chosen: Which) -> PyTree:
    """Returns the gradient of the first chosen replica."""
    first = chosen & (jnp.cumsum(chosen) == 1)
    return jax.tree.map(lambda x: jnp.sum(jnp.where(column(first, x), x, 0), axis=0), gradients)


@final
@dataclasses.dataclass(frozen=True)
class SignFlip(Attack):
    """Each wrong replica sends its own gradient times -strength."""

    strength: float | Float[Array, ""] = 1.0

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        return jax.tree.map(lambda x: -self.strength * x, gradients)


@final
@dataclasses.dataclass(frozen=True)
class CopiedSignFlip(Attack):
    """All wrong replicas send the first one's gradient times -strength: they agree with each other."""

    strength: float | Float[Array, ""] = 1.0

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        return jax.tree.map(lambda x: -self.strength * x, _first_row(gradients, wrong))


@final
@dataclasses.dataclass(frozen=True)
class Gaussian(Attack):
    """Wrong replicas send noise of the right ones' root mean square times strength."""

    strength: float | Float[Array, ""] = 10.0

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        leaves, tree = jax.tree.flatten(gradients)
        noise = [self.strength * jnp.sqrt(jnp.mean(jnp.square(x))) * jax.random.normal(own, x.shape)
                 for own, x in zip(jax.random.split(key, len(leaves)), leaves, strict=True)]  # fmt: skip
        return jax.tree.unflatten(tree, noise)


@final
@dataclasses.dataclass(frozen=True)
class InnerProduct(Attack):
    """Wrong replicas send the right ones' mean times -strength (IPM): even a little turns a small mean around.

    References:
        Xie, Koyejo and Gupta, Fall of Empires, UAI 2019.
    """

    strength: float | Float[Array, ""] = 0.5

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        return jax.tree.map(lambda x: -self.strength * x, mean_of(gradients, ~wrong))


@final
@dataclasses.dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """Wrong replicas send the right ones' mean less strength standard deviations in each coordinate (ALIE).

    References:
        Baruch, Baruch and Goldberg, A Little Is Enough, NeurIPS 2019.
    """

    strength: float | Float[Array, ""] = 1.5

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        right = jnp.maximum(jnp.sum(~wrong) - 1, 1)

        def shifted(x: Float[Array, "N ..."], mean: Float[Array, " ..."]) -> Float[Array, " ..."]:
            square = jnp.sum(jnp.where(column(wrong, x), 0, jnp.square(x - mean)), axis=0) / right
            return mean - self.strength * jnp.sqrt(square)

        return jax.tree.map(shifted, gradients, mean_of(gradients, ~wrong))


@final
@dataclasses.dataclass(frozen=True)
class Mimic(Attack):
    """Wrong replicas send what the first right one sends: that one counts too much, which hurts on unlike data.

    References:
        Karimireddy, He and Jaggi, Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing, ICLR 2022.
    """

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        return _first_row(gradients, ~wrong)


@final
@dataclasses.dataclass(frozen=True)
class NotFinite(Attack):
    """Wrong replicas send a value that isn't finite, "nan" or "inf", in all coordinates."""

    value: str = "nan"

    def __post_init__(self) -> None:
        checks.one_of("not finite", "value", self.value, ("nan", "inf"))

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        return jax.tree.map(lambda x: float(self.value), gradients)


_WORDS = {"float32": jnp.uint32, "bfloat16": jnp.uint16, "float16": jnp.uint16}


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

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        word = _WORDS[self.dtype]

        def flipped(x: Float[Array, "N ..."], own: PRNGKeyArray) -> Float[Array, "N ..."]:
            flat = x.reshape(len(x), -1).astype(self.dtype)
            chosen = jax.random.randint(own, (len(x), 1), 0, flat.shape[1]) == jnp.arange(flat.shape[1])
            bits = jax.lax.bitcast_convert_type(flat, word) ^ word(1 << self.position)
            other = jax.lax.bitcast_convert_type(bits, flat.dtype)
            return jnp.where(chosen, other, flat).astype(x.dtype).reshape(x.shape)

        leaves, tree = jax.tree.flatten(gradients)
        return jax.tree.unflatten(tree, map(flipped, leaves, jax.random.split(key, len(leaves))))


@final
@dataclasses.dataclass(frozen=True)
class Stale(Attack):
    """Wrong replicas send the gradients that they had some steps ago, which are the state; in the first steps zeros."""

    steps: int = 10

    def __post_init__(self) -> None:
        checks.count("stale", "steps", self.steps)

    def send(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray, state: PyTree = None) -> Sent:
        old = state
        if state is None:
            old = jax.tree.map(lambda x: jnp.zeros((self.steps, *x.shape), x.dtype), gradients)
        kept = jax.tree.map(lambda o, x: jnp.concatenate([o[1:], x[None]]), old, gradients)
        return _replaced(gradients, wrong, jax.tree.map(lambda o: o[0], old)), kept


@final
@dataclasses.dataclass(frozen=True)
class Zero(Attack):
    """Wrong replicas send zeros."""

    def _wrong(self, gradients: Gradients, wrong: Which, key: PRNGKeyArray) -> PyTree:
        return jax.tree.map(jnp.zeros_like, gradients)


ATTACKS: dict[str, type[Attack]] = {
    "sign-flip": SignFlip,
    "copied-sign-flip": CopiedSignFlip,
    "gaussian": Gaussian,
    "inner-product": InnerProduct,
    "a-little-is-enough": ALittleIsEnough,
    "mimic": Mimic,
    "not-finite": NotFinite,
    "bit-flip": BitFlip,
    "stale": Stale,
    "zero": Zero,
}
"""The attacks and faults of gradients by name, frozen dataclasses."""


def flipped_labels(targets: Int[Array, " ..."], classes: int) -> Int[Array, " ..."]:
    """Returns wrong labels for right ones: the last class for the first one, and so on.

    >>> flipped_labels(jnp.array([0, 3, 9]), 10).tolist()
    [9, 6, 0]
    """
    return classes - 1 - targets


@jax.custom_vjp
def wrong_stage(
    values: Float[Array, " ..."], forward: Float[Array, " ..."], backward: Float[Array, " ..."]
) -> Float[Array, " ..."]:
    """Returns a stage's activations times a factor, of which 1 is right; the signal that comes back through this
    is multiplied by another, too.

    Put where a stage's activations leave it, it is a machine that computes this stage wrongly: stages after it have
    wrong inputs, stages before it a wrong signal, as has the stage itself.
    """
    return values * forward


def _backward(factors: PyTree, signal: Float[Array, " ..."]) -> PyTree:
    forward, backward = factors
    return signal * backward, jnp.zeros_like(forward), jnp.zeros_like(backward)


wrong_stage.defvjp(lambda values, forward, backward: (values * forward, (forward, backward)), _backward)
