"""The matrix of choices under a softmax: how it moves, and how it hardens."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from alpa_dejavu.problem import checks

Floats = NDArray[np.float64]


@final
@dataclasses.dataclass(frozen=True)
class Mixing:
    """Settings of how options are mixed, by turns, and of how their shares move.

    Attributes:
        rate: how far the matrix moves in a step, where an option is worth twice the mean.
        averaged: the part by which the average loss of an option, which begins at that of all, moves in a step.
        drop: a choice whose share is below so much of its row's largest one is out.
        gradients: how many gradients each worker computes in an option's segment, for the slowest option.
        most_steps: after so many the largest share of each row is left.
        known_first: whether shares follow the planned seconds, and choices are dropped by these, before the first step;
            not where a weight of seconds is given. Experimental.
    """

    rate: float = 6.0
    averaged: float = 0.1
    drop: float = 0.3
    gradients: int = 1
    most_steps: int = 12
    known_first: bool = False

    def __post_init__(self) -> None:
        for field in ("gradients", "most_steps"):
            checks.count("mixing", field, getattr(self, field))
        for field in ("averaged", "drop"):
            if not 0 < getattr(self, field) <= 1:
                raise ValueError(f"mixing: {field} is {getattr(self, field)}, but must be above 0 and at most 1; give "
                                 "a share")  # fmt: skip
        checks.positive("mixing", "rate", self.rate)


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Matrix:
    """A row of numbers for each kind of choice, under a softmax; minus infinity is a choice that is out.

    Attributes:
        rows: the numbers, row by row.
        places: for each option and row the place of its choice, shape (options, rows).
    """

    rows: tuple[Floats, ...]
    places: NDArray[np.int64]

    @classmethod
    def of(cls, places: Sequence[Sequence[int]]) -> Matrix:
        """Returns one of equal shares."""
        of_options = np.array(places, np.int64)
        return cls(tuple(np.zeros(count) for count in of_options.max(axis=0) + 1), of_options)

    def shares(self) -> Floats:
        """Returns each option's share, shape (options,): the product of those of its choices."""
        every = [softmax(row)[self.places[:, n]] for n, row in enumerate(self.rows)]
        return np.asarray(np.prod(every, axis=0))

    def moved(self, gradient: Floats, rate: float) -> Matrix:
        """Returns it after a step of mirror descent, by which shares are multiplied by exp(-rate * gradient).

        Args:
            gradient: by each option's share, shape (options,); a choice takes the mean of its options by their shares.
            rate: of the step.
        """
        shares, rows = self.shares(), []
        for n, row in enumerate(self.rows):
            parts = np.bincount(self.places[:, n], shares, len(row))
            sums = np.bincount(self.places[:, n], shares * gradient, len(row))
            rows.append(row - rate * np.divide(sums, parts, out=np.zeros(len(row)), where=parts > 0))
        return Matrix(tuple(rows), self.places)

    def hardened(self, drop: float) -> Matrix:
        """Returns it without the choices whose share is below so much of their row's largest one; 1 leaves that."""
        rows = []
        for row in self.rows:
            kept = row >= row.max() + np.log(drop)
            if drop == 1:
                kept = np.arange(len(row)) == row.argmax()
            rows.append(np.where(kept, row, -np.inf))
        return Matrix(tuple(rows), self.places)
