"""Faults of parts: removed, zeroed, stuck, with flipped bits, noisy, or with further parts beside them.

In: parameters or activations, the units that are hit, and a key. Out: the same with the fault, the rest to the bit as
it was.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.problem import checks
from alpa_dejavu.training.resilience.parts import Parts

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

__all__ = ["FAULTS", "Added", "Flipped", "Noisy", "Removed", "Stuck", "UnitFault", "Zeroed", "fault"]


class UnitFault(abc.ABC):
    """An interface of faults that units of a model may have."""

    @abc.abstractmethod
    def faulty(self, params: PyTree, parts: Parts, hit: Bool[Array, " units"], key: PRNGKeyArray) -> PyTree:
        """Returns parameters, or a tuple of one activation, in which the hit units are faulty, and nothing else
        has changed.

        It is a pure function of JAX, so that many masks run side by side by `vmap`.
        """


def changed(
    params: PyTree, parts: Parts, hit: Bool[Array, " units"], change: Callable[[Float[Array, " ..."], int], Array]
) -> PyTree:
    """Returns parameters in which the numbers of hit units are those of their changed leaf, of its number."""
    leaves, tree = jax.tree.flatten(params)
    return jax.tree.unflatten(tree, [
        leaf if mask is None else jnp.where(mask, change(leaf, number), leaf)
        for number, (leaf, mask) in enumerate(zip(leaves, parts.masks(hit), strict=True))
    ])  # fmt: skip


class _ValueFault(UnitFault):
    """Faults that change numbers where they are."""

    def faulty(self, params: PyTree, parts: Parts, hit: Bool[Array, " units"], key: PRNGKeyArray) -> PyTree:
        return changed(params, parts, hit, lambda leaf, number: self._values(leaf, jax.random.fold_in(key, number)))

    @abc.abstractmethod
    def _values(self, leaf: Float[Array, " ..."], key: PRNGKeyArray) -> Float[Array, " ..."]:
        """Returns all numbers of a leaf as they were if all were hit."""


@final
@dataclasses.dataclass(frozen=True)
class Removed(_ValueFault):
    """Parts that put out zero, as if they weren't there, whatever their activation.

    Models are run so by `resilience`, `critical` and `hardening`. Parameters alone can say it of parts that have those
    who read them among their axes (`parts_of_axes`); of others `faulty` zeroes the numbers, which is the same where an
    activation of 0 is 0.
    """

    def _values(self, leaf: Float[Array, " ..."], key: PRNGKeyArray) -> Float[Array, " ..."]:
        return jnp.zeros_like(leaf)


@final
@dataclasses.dataclass(frozen=True)
class Zeroed(_ValueFault):
    """Parts whose weights are all zero; what they put out is their activation of zero, a half of a sigmoid."""

    def _values(self, leaf: Float[Array, " ..."], key: PRNGKeyArray) -> Float[Array, " ..."]:
        return jnp.zeros_like(leaf)


@final
@dataclasses.dataclass(frozen=True)
class Stuck(_ValueFault):
    """Parts whose numbers are all the same value, whatever comes in."""

    value: float = 1.0

    def _values(self, leaf: Float[Array, " ..."], key: PRNGKeyArray) -> Float[Array, " ..."]:
        return jnp.full_like(leaf, self.value)


@final
@dataclasses.dataclass(frozen=True)
class Flipped(_ValueFault):
    """Parts each of whose numbers has one bit flipped.

    Attributes:
        bit: its position, 0 the lowest; None: drawn anew for each number, all as likely.
        dtype: how numbers are kept: "float32", "bfloat16", "float16", or "int8", quantised symmetrically, the largest
            of an array being 127. Numbers that aren't hit aren't rounded: `kept_as` rounds all.
    """

    bit: int | None = None
    dtype: str = "float32"

    def __post_init__(self) -> None:
        checks.one_of("flipped", "dtype", self.dtype, tuple(FORMATS))
        if self.bit is not None and self.bit not in range(FORMATS[self.dtype]):
            raise ValueError(f"bit is {self.bit}, but must be one of 0..{FORMATS[self.dtype] - 1}, those of "
                             f"{self.dtype}; give another one, or None")  # fmt: skip

    def _values(self, leaf: Float[Array, " ..."], key: PRNGKeyArray) -> Float[Array, " ..."]:
        bits = jax.random.randint(key, leaf.shape, 0, FORMATS[self.dtype]) if self.bit is None else self.bit
        return flipped(leaf, self.dtype, bits)


@final
@dataclasses.dataclass(frozen=True)
class Noisy(_ValueFault):
    """Parts whose numbers are each multiplied by a factor from a normal distribution around one, of this spread."""

    spread: float = 0.1

    def __post_init__(self) -> None:
        checks.not_negative("noisy", "spread", self.spread)

    def _values(self, leaf: Float[Array, " ..."], key: PRNGKeyArray) -> Float[Array, " ..."]:
        return leaf * (1 + self.spread * jax.random.normal(key, leaf.shape, leaf.dtype))


@final
@dataclasses.dataclass(frozen=True)
class Added(UnitFault):
    """Parts that each have a random one added beside them: each array is then twice as wide along the units' axis.

    A new unit's numbers are drawn with the mean and deviation of its array; those of units that aren't hit are zero.
    The parts must have those who read them among their axes (`parts_of_axes`), and the model must take wider arrays.
    """

    def faulty(self, params: PyTree, parts: Parts, hit: Bool[Array, " units"], key: PRNGKeyArray) -> PyTree:
        leaves, tree = jax.tree.flatten(params)
        for number, owners in enumerate(parts.owners):
            for place, owner in enumerate(owners):
                if owner.axis is None:
                    raise ValueError(f"parts is {parts.kind}, but must lie along axes to be added to; give neurons or "
                                     "heads by parts_of_axes")  # fmt: skip
                leaf = leaves[number]
                drawn = jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, number), place), leaf.shape)
                new = jnp.where(hit[owner.units], leaf.mean() + leaf.std() * drawn.astype(leaf.dtype), 0)
                leaves[number] = _beside(leaf, new, owner.axis, owner.width, parts.sizes[owner.of_group])
        return jax.tree.unflatten(tree, leaves)


def _beside(
    leaf: Float[Array, " ..."], new: Float[Array, " ..."], axis: int, width: int, units: int
) -> Float[Array, " ..."]:
    """Returns a leaf with new units after the old ones of each run of units along an axis."""
    split = (*leaf.shape[:axis], leaf.shape[axis] // (width * units), units * width, *leaf.shape[axis + 1 :])
    joined = jnp.concatenate([leaf.reshape(split), new.reshape(split)], axis=axis + 1)
    return joined.reshape(*leaf.shape[:axis], 2 * leaf.shape[axis], *leaf.shape[axis + 1 :])


FAULTS: dict[str, type[UnitFault]] = {
    "removed": Removed,
    "zeroed": Zeroed,
    "stuck": Stuck,
    "flipped": Flipped,
    "noisy": Noisy,
    "added": Added,
}
"""For each name the fault, a frozen dataclass."""


def fault(choice: str | UnitFault) -> UnitFault:
    """Returns the fault that a name stands for, one of `FAULTS`, or the given fault itself.

    >>> fault("removed")
    Removed()
    """
    return resolve("fault", choice, FAULTS, UnitFault)  # type: ignore[type-abstract]


FORMATS: Mapping[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16, "int8": 8}
"""By name the formats whose bits may flip, and how many these are."""


def flipped(values: Float[Array, " ..."], dtype: str, bits: int | Int[Array, " ..."]) -> Float[Array, " ..."]:
    """Returns numbers read after one bit of each, 0 the lowest, has flipped while kept in a format of `FORMATS`."""
    scale = _scale(values)
    kept = _quantised(values, scale) if dtype == "int8" else values.astype(dtype)
    whole = jnp.dtype(f"uint{FORMATS[dtype]}")
    mask = jnp.left_shift(jnp.ones((), whole), jnp.asarray(bits).astype(whole))
    read = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(kept, whole) ^ mask, kept.dtype)
    return (read * scale if dtype == "int8" else read).astype(values.dtype)


def kept_as(params: PyTree, dtype: str) -> PyTree:
    """Returns parameters rounded to a format of `FORMATS`, in arrays of the dtype that they had; whole numbers stay."""
    checks.one_of("kept_as", "dtype", dtype, tuple(FORMATS))

    def rounded(leaf: Array) -> Array:
        leaf = jnp.asarray(leaf)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        scale = _scale(leaf)
        return (_quantised(leaf, scale) * scale if dtype == "int8" else leaf.astype(dtype)).astype(leaf.dtype)

    return jax.tree.map(rounded, params)


def _scale(values: Float[Array, " ..."]) -> Float[Array, ""]:
    largest = jnp.max(jnp.abs(values))
    return jnp.where(largest > 0, largest, 1) / 127


def _quantised(values: Float[Array, " ..."], scale: Float[Array, ""]) -> Int[Array, " ..."]:
    return jnp.clip(jnp.round(values / scale), -127, 127).astype(jnp.int8)
