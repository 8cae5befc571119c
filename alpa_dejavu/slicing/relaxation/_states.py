"""How much of each resource is used: the states of a dynamic program over stages, by one number each."""

from __future__ import annotations

import functools
import math
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.slicing.relaxation._batch import IntArray
from alpa_dejavu.slicing.relaxation._lattice import Lattice


@final
class States:
    """S states of a dynamic program over stages, each an amount used of every one of R resources, such as devices of a
    kind of host; in the first one nothing is used.

    Attributes:
        uses: shape (Q, R), how much of each resource a stage uses, by Q classes of sites (submeshes that are alike).
        back: shape (Q,), the difference between the indices of a state and of that without a stage of a class.
    """

    def __init__(self, lattice: Lattice, kinds_only: bool = False) -> None:
        choices, resources = lattice.choices, slice(lattice.num_kinds if kinds_only else None)
        self.uses, self._available = choices.uses[:, resources], choices.available[resources]
        self._exact, self._dims = choices.exact[resources], tuple((self._available + 1).tolist())
        steps = np.append(np.cumprod(np.array(self._dims[:0:-1], dtype=np.int64))[::-1], 1).astype(np.int64)
        self.back: IntArray = self.uses @ steps

    @property
    def count(self) -> int:
        """Returns the number of states of the dynamic program, which may be too many to keep in memory."""
        return math.prod(self._dims)

    def holds(self) -> NDArray[np.bool_]:
        """Returns whether at least as much is used in each of S states as a stage of each of Q classes of sites uses;
        shape (Q, S).
        """
        return np.asarray((self._used >= self.uses[:, None]).all(axis=2))

    def goal(self) -> IntArray:
        """Returns the indices of the states in which every resource that has to be used up is."""
        return np.flatnonzero(((self._used == self._available) | ~self._exact).all(axis=1))

    @functools.cached_property
    def _used(self) -> IntArray:
        return np.indices(self._dims).reshape(len(self._dims), -1).T
