"""Random numbers that depend on a seed and a purpose alone."""

from __future__ import annotations

import numpy as np

__all__ = ["draws"]


def draws(seed: int, *name: int) -> np.random.Generator:
    """Returns the generator of one purpose, given by numbers: it depends on nothing that others draw."""
    return np.random.default_rng([seed, *name])
