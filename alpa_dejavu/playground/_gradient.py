"""A gradient that is computed when somebody first looks at it, on flat vectors of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Gradient", "Rows", "Vector"]

Vector = NDArray[np.float32]
Rows = NDArray[np.int64]


@final
class Gradient:
    """A gradient that a worker computed, or is computing.

    Args:
        compute: computes a gradient's values, and perhaps those of others that wait, and sets `found` of each; None:
            somebody else sets it.
        at: the parameters that it is computed at, shape (P,).

    Attributes:
        worker: the number of the worker.
        step: how many gradients the worker had begun before.
        version: the worker's version of the parameters that it was computed at.
        rows: indices of its training samples.
        multipliers: of the parameters, shape (P,): 0 for those that the worker left out; None: none.
        spoil: makes of the right gradient the one that the worker sends; None: that is the right one.
    """

    def __init__(self, compute: Callable[[Gradient], None] | None, worker: int, step: int, version: int, at: Vector,
                 rows: NDArray[Any], multipliers: Vector | None = None) -> None:  # fmt: skip
        self.worker, self.step, self.version, self.multipliers = worker, step, version, multipliers
        self._compute, self.at, self.rows, self.found = compute, at, rows, None  # type: Any, Any, Any, Vector | None
        self.spoil: Callable[[Vector], Vector] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.worker, self.step, self.version, self.rows, self.values)

    @property
    def samples(self) -> float | Vector:
        """Returns the samples that it is the mean over: a number, or for each parameter, shape (P,), where some were
        left out.
        """
        count = len(self.rows)
        return count if self.multipliers is None else np.float32(count) * (self.multipliers != 0)

    @property
    def values(self) -> Vector:
        """Returns the gradient as a vector of shape (P,), which must not be changed."""
        if self.found is None:
            assert self._compute is not None, "somebody has set it"
            self._compute(self)
        assert self.found is not None, "it was computed"
        if self.spoil is not None:
            self.found, self.spoil = self.spoil(self.found), None
        return self.found


def _arrived(worker: int, step: int, version: int, rows: Rows, values: Vector) -> Gradient:
    """Returns a gradient that came from another process."""
    gradient = Gradient(None, worker, step, version, values, rows)
    gradient.found = values
    return gradient
