"""Faults of parts: removed, zeroed, stuck, with flipped bits, noisy, or with further parts beside them.

In: parameters or activations, the units that are hit, and a key. Out: the same with the fault, the rest to the bit as
it was.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu._util.by_name import resolve
from alpa_dejavu.training.resilience.parts import Parts

__all__ = ["FAULTS", "Added", "Flipped", "Noisy", "Removed", "Stuck", "UnitFault", "Zeroed", "fault"]


class UnitFault(abc.ABC):
    """An interface of faults that units of a model may have."""

    @abc.abstractmethod
    def faulty(self, params: Any, parts: Parts, hit: jax.Array, key: jax.Array) -> Any:
        """Returns parameters in which the hit units are faulty, and nothing else has changed.

        It is a pure function of JAX, so that many masks run side by side by `vmap`.

        Args:
            params: the parameters, or a tuple of one activation.
            parts: the units in them.
            hit: which units are hit, shape (units,), bool.
            key: a random key for what the fault draws.
        """


class _ValueFault(UnitFault):
    """Faults that change numbers where they are."""

    def faulty(self, params: Any, parts: Parts, hit: jax.Array, key: jax.Array) -> Any:
        leaves, tree = jax.tree_util.tree_flatten(params)
        changed = [
            leaf if mask is None else jnp.where(mask, self._values(leaf, jax.random.fold_in(key, number)), leaf)
            for number, (leaf, mask) in enumerate(zip(leaves, parts.masks(hit), strict=True))
        ]
        return jax.tree_util.tree_unflatten(tree, changed)

    @abc.abstractmethod
    def _values(self, leaf: Any, key: jax.Array) -> Any:
        """Returns all numbers of a leaf as they were if all were hit."""


@final
@dataclasses.dataclass(frozen=True)
class Removed(_ValueFault):
    """Parts that put out zero, as if they weren't there, whatever their activation.

    Models are run so by `resilience`, `critical` and `hardening`. Parameters alone can say it of parts that have those
    who read them among their axes (`parts_of_axes`); of others `faulty` zeroes the numbers, which is the same where an
    activation of 0 is 0.
    """

    def _values(self, leaf: Any, key: jax.Array) -> Any:
        return jnp.zeros_like(leaf)


@final
@dataclasses.dataclass(frozen=True)
class Zeroed(_ValueFault):
    """Parts whose weights are all zero; what they put out is their activation of zero, a half of a sigmoid."""

    def _values(self, leaf: Any, key: jax.Array) -> Any:
        return jnp.zeros_like(leaf)


@final
@dataclasses.dataclass(frozen=True)
class Stuck(_ValueFault):
    """Parts whose numbers are all the same, whatever comes in.

    Attributes:
        value: the number.
    """

    value: float = 1.0

    def _values(self, leaf: Any, key: jax.Array) -> Any:
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
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype is {self.dtype!r}, but must be one of {', '.join(FORMATS)}; name one")
        if self.bit is not None and self.bit not in range(FORMATS[self.dtype].bits):
            raise ValueError(f"bit is {self.bit}, but must be one of 0..{FORMATS[self.dtype].bits - 1}, those of "
                             f"{self.dtype}; give another one, or None")  # fmt: skip

    def _values(self, leaf: Any, key: jax.Array) -> Any:
        bits = jax.random.randint(key, leaf.shape, 0, FORMATS[self.dtype].bits) if self.bit is None else self.bit
        return flipped(leaf, self.dtype, bits)


@final
@dataclasses.dataclass(frozen=True)
class Noisy(_ValueFault):
    """Parts whose numbers are each multiplied by a factor from a normal distribution around one.

    Attributes:
        spread: its standard deviation.
    """

    spread: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.spread) and self.spread >= 0):
            raise ValueError(f"spread is {self.spread}, but must be a number of at least 0; give a standard deviation")

    def _values(self, leaf: Any, key: jax.Array) -> Any:
        return leaf * (1 + self.spread * jax.random.normal(key, leaf.shape, leaf.dtype))


@final
@dataclasses.dataclass(frozen=True)
class Added(UnitFault):
    """Parts that each have a random one added beside them: each array is then twice as wide along the units' axis.

    A new unit's numbers are drawn with the mean and deviation of its array; those of units that aren't hit are zero.
    The parts must have those who read them among their axes (`parts_of_axes`), and the model must take wider arrays.
    """

    def faulty(self, params: Any, parts: Parts, hit: jax.Array, key: jax.Array) -> Any:
        """Returns parameters with a random unit beside each hit one.

        Raises:
            ValueError: the units don't lie along axes.
        """
        leaves, tree = jax.tree_util.tree_flatten(params)
        for number, owners in enumerate(parts.owners):
            for place, owner in enumerate(owners):
                if owner.axis is None:
                    raise ValueError(f"parts is {parts.kind}, but must lie along axes to be added to; give neurons or "
                                     "heads by parts_of_axes")  # fmt: skip
                leaf = leaves[number]
                drawn = jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, number), place), leaf.shape)
                new = jnp.where(hit[owner.units], leaf.mean() + leaf.std() * drawn.astype(leaf.dtype), 0)
                leaves[number] = _beside(leaf, new, owner.axis, owner.width, parts.sizes[owner.of_group])
        return jax.tree_util.tree_unflatten(tree, leaves)


def _beside(leaf: Any, new: Any, axis: int, width: int, units: int) -> Any:
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


@final
@dataclasses.dataclass(frozen=True)
class Format:
    """A format of numbers: its bits, and which of them are the exponent's, from the lowest to the one after the last.

    Attributes:
        bits: how many there are.
        exponent: positions of the exponent's bits, the end not included; the same number twice: there are none.
    """

    bits: int
    exponent: tuple[int, int]


FORMATS: Mapping[str, Format] = {
    "float32": Format(32, (23, 31)),
    "bfloat16": Format(16, (7, 15)),
    "float16": Format(16, (10, 15)),
    "int8": Format(8, (0, 0)),
}
"""By name the formats whose bits may flip."""


def flipped(values: Any, dtype: str, bits: Any) -> Any:
    """Returns numbers as they are read after one bit of each has flipped while they were kept in a format.

    Args:
        values: an array of real numbers.
        dtype: a name of `FORMATS`.
        bits: positions, one for all or one for each number; 0 is the lowest.
    """
    scale = _scale(values)
    kept = _quantised(values, scale) if dtype == "int8" else values.astype(dtype)
    whole = jnp.dtype(f"uint{FORMATS[dtype].bits}")
    mask = jnp.left_shift(jnp.ones((), whole), jnp.asarray(bits).astype(whole))
    read = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(kept, whole) ^ mask, kept.dtype)
    return (read * scale if dtype == "int8" else read).astype(values.dtype)


def kept_as(params: Any, dtype: str) -> Any:
    """Returns parameters rounded to a format of `FORMATS`, in arrays of the dtype that they had; whole numbers stay.

    Raises:
        ValueError: there is no such format.
    """
    if dtype not in FORMATS:
        raise ValueError(f"dtype is {dtype!r}, but must be one of {', '.join(FORMATS)}; name one")

    def rounded(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        scale = _scale(leaf)
        return (_quantised(leaf, scale) * scale if dtype == "int8" else leaf.astype(dtype)).astype(leaf.dtype)

    return jax.tree_util.tree_map(rounded, params)


def _scale(values: Any) -> Any:
    largest = jnp.max(jnp.abs(values))
    return jnp.where(largest > 0, largest, 1) / 127


def _quantised(values: Any, scale: Any) -> Any:
    return jnp.clip(jnp.round(values / scale), -127, 127).astype(jnp.int8)
