"""The layout of parameters: which group each leaf is in, and on which of its coordinates distances are measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.training._scope import groups_of

COORDINATES = ("random", "strided")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class GradientLayout:
    """The groups and coordinates of parameters, which are known from their shapes alone.

    Attributes:
        groups: names.
        group_of: the number of each leaf's group.
        picks: for each leaf the flat indices of the coordinates that distances are measured on; None: all.
        weights: for each leaf, all coordinates over those that are picked.
    """

    groups: tuple[str, ...]
    group_of: tuple[int, ...]
    picks: tuple[NDArray[np.int64] | slice | None, ...]
    weights: tuple[float, ...]

    def picked(self, leaves: Sequence[Any], rows: bool = False) -> list[Any]:
        """Returns the picked coordinates of leaves, in float32.

        Args:
            leaves: of the parameters' shapes.
            rows: whether each leaf has a dimension of points before.
        """
        picked_leaves = []
        for leaf, pick in zip(leaves, self.picks, strict=True):
            if pick is not None:
                leaf = leaf.reshape(leaf.shape[0], -1)[:, pick] if rows else leaf.reshape(-1)[pick]
            picked_leaves.append(leaf.astype(jnp.float32))
        return picked_leaves

    def by_group(self, of_leaves: Sequence[Any]) -> Any:
        """Returns for each group the sum of what its leaves have, shape [groups, ...], unpicked coordinates included.

        Args:
            of_leaves: for each leaf an array of one shape, a sum over its picked coordinates.
        """
        sums: list[Any] = [0.0] * len(self.groups)
        for group, weight, own in zip(self.group_of, self.weights, of_leaves, strict=True):
            sums[group] = sums[group] + (own if weight == 1 else weight * own)
        return jnp.stack(sums)


def layout_of(
    params: Any, scope: str, stage_of: Callable[[str], str] | None, share: float, coordinates: str, seed: int
) -> GradientLayout:
    """Returns the layout of parameters, or of their shapes.

    Raises:
        ValueError: a leaf holds no real numbers, or there is no such scope.
    """
    leaves = jax.tree_util.tree_leaves(params)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"optex: params has a leaf of {leaf.dtype}, but must have real numbers alone; keep the "
                             "others out of the parameters")  # fmt: skip
    if not leaves:
        raise ValueError("optex: params is without arrays, but must have some; give a pytree of them")
    names = groups_of(params, scope, stage_of, "optex")
    groups = tuple(dict.fromkeys(names))
    picks = tuple(_pick(math.prod(leaf.shape), share, coordinates, [seed, n]) for n, leaf in enumerate(leaves))
    weights = [
        math.prod(leaf.shape) / _count(pick, math.prod(leaf.shape)) for leaf, pick in zip(leaves, picks, strict=True)
    ]
    return GradientLayout(groups, tuple(map(groups.index, names)), picks, tuple(weights))


def _pick(size: int, share: float, coordinates: str, seed: list[int]) -> NDArray[np.int64] | slice | None:
    count = math.ceil(share * size)
    if count == size:
        return None
    if coordinates == "strided":
        return slice(None, None, size // count)
    return np.sort(np.random.default_rng(seed).choice(size, count, replace=False, shuffle=False))


def _count(pick: NDArray[np.int64] | slice | None, size: int) -> int:
    if pick is None:
        return size
    return len(range(size)[pick]) if isinstance(pick, slice) else len(pick)
