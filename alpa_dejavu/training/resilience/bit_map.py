"""The harm of flipped bits by layer and position: one program for all of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.resilience._subject import Subject, accuracy, checked_shares, found_parts
from alpa_dejavu.training.resilience.faults import FORMATS, changed, flipped, kept_as
from alpa_dejavu.training.resilience.parts import Parts, counted

if TYPE_CHECKING:
    from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

    from alpa_dejavu.training.resilience._subject import Data, Judge
    from alpa_dejavu.training.resilience.activations import Model

__all__ = ["BitMap", "bit_map"]

_EXPONENTS = {"float32": (23, 31), "bfloat16": (7, 15), "float16": (10, 15), "int8": (0, 0)}
"""The positions of the exponent's bits in each format, the end not included."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class BitMap:
    """The harm of flipped bits.

    Attributes:
        groups: the names of the groups that were struck; empty: all numbers.
        base: what the judge says without flips, of numbers rounded to the format.
        judged: what it says with flips, the mean over masks, the lowest bit first.
    """

    dtype: str
    groups: tuple[str, ...]
    base: float
    judged: Float[np.ndarray, "groups bits"]
    not_finite: Float[np.ndarray, "groups bits"]

    @property
    def harm(self) -> Float[np.ndarray, "groups bits"]:
        """Returns how much less the judge says with flips, at least 0."""
        return np.maximum(0.0, self.base - self.judged)

    def exponents_share(self, group: str = "") -> float:
        """Returns the share of the harm of all bits of a group that the exponent's have; NaN where none harms."""
        harm = self.harm[self.groups.index(group)]
        first, end = _EXPONENTS[self.dtype]
        return float(harm[first:end].sum() / harm.sum()) if harm.sum() > 0 else float("nan")


def bit_map(
    apply_fn: Model,
    params: PyTree,
    data: Data,
    dtype: str = "float32",
    *,
    parts: str | Parts = "weights",
    share: float = 1e-3,
    masks: int = 10,
    by_layer: bool = True,
    judge: Judge = accuracy,
    seed: int = 0,
) -> BitMap:
    """Returns how accurate a model is with one bit flipped in a share of a layer's numbers, for each layer and bit.

    Args:
        apply_fn, params, data: as `resilience` takes them; they are rounded to the format first.
        dtype: the format that numbers are kept in: "float32", "bfloat16", "float16" or "int8".
        parts: whose numbers are struck; "weights" are single ones.
        share: of a layer's units, each of whose numbers has the bit flipped; one unit at least.

    Raises:
        ValueError: there is no such format, the model has no such parts, or the data don't fit.
    """
    checked_shares((share,))
    checks.count("bit_map", "masks", masks)
    subject = Subject.checked(apply_fn, params, data, judge)
    subject = dataclasses.replace(subject, params=kept_as(subject.params, dtype))
    units = found_parts(subject, parts)
    if units.kind.startswith("activations"):
        raise ValueError(f"parts is {units.kind}, but must be of parameters; use resilience with Flipped for these")
    groups = ("", *units.groups) if by_layer else ("",)
    asked = [
        (among.start, among.stop - among.start, max(1, counted(units, share, group)), bit)
        for group in groups for among in (units.group(group),) for bit in range(FORMATS[dtype])
    ]  # fmt: skip

    def judged_with_flips(params: PyTree, key: PRNGKeyArray, *place: Int[Array, ""]) -> PyTree:
        start, size, count, bit = place
        numbers = jnp.arange(units.count)
        drawn = jax.random.uniform(key, (units.count,)) + 2.0 * ((numbers < start) | (numbers >= start + size))
        hit = jnp.zeros(units.count, bool).at[jnp.argsort(drawn)].set(numbers < count)
        struck = changed(params, units, hit, lambda leaf, _: flipped(leaf, dtype, bit))
        return subject.judged(apply_fn(struck, subject.inputs))

    @jax.jit
    def at_all_places(params: PyTree, places: tuple[Int[Array, " places"], ...]) -> PyTree:
        def mean_over_masks(place: tuple[Int[Array, ""], ...]) -> PyTree:
            keys = jax.random.split(jax.random.PRNGKey(seed), masks)
            judged, not_finite = jax.lax.map(lambda key: judged_with_flips(params, key, *place), keys)
            return judged.mean(), not_finite.mean()

        return jax.lax.map(mean_over_masks, places)

    judgements = at_all_places(subject.params, tuple(np.array(asked).T))
    judged, not_finite = (np.asarray(figures, float).reshape(len(groups), -1) for figures in judgements)
    base = float(subject.judged(apply_fn(subject.params, subject.inputs))[0])
    return BitMap(dtype, groups, base, judged, not_finite)
