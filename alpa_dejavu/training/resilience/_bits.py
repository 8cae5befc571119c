"""Numbers as bits, in the formats that models are kept in."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, final

import jax
import jax.numpy as jnp


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
