"""Arguments that a train step can be run with, in place of abstract ones."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

__all__ = ["concrete"]

_SMALLEST, _LARGEST = 0.001, 0.05


def concrete(arguments: Any, seed: int = 0) -> Any:
    """The tree with an array for each abstract one; what is an array already, or no array at all, stays.

    Numbers are small and positive (so are the squares that optimizers keep), whole ones 0 (a token and a label of any
    vocabulary), truth values true. How long a step takes doesn't depend on them, as long as they are ordinary numbers.
    """
    rng = np.random.default_rng(seed)

    def filled(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            return rng.uniform(_SMALLEST, _LARGEST, leaf.shape).astype(leaf.dtype)
        return np.ones(leaf.shape, leaf.dtype) if leaf.dtype == bool else np.zeros(leaf.shape, leaf.dtype)

    return jax.tree_util.tree_map(filled, arguments)
