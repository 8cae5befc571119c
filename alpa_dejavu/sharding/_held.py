"""How much of each operator's result one device has, and what that depends on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.sharding._layer_program import LayerProgram, Lifetime
from alpa_dejavu.sharding._spec import Shape, axes_of
from alpa_dejavu.sharding._table import Strategy

Value = tuple[int, float, tuple[int, ...]]
"""The operator by which something is cut, its whole bytes, and the axes that divide it besides."""


@final
class Held:
    """A program under chosen strategies, on a mesh of some shape.

    Bytes come in parts, shape (2, 2): by whether they grow with the micro-batch, and whether mesh axis 0 cuts them.
    """

    def __init__(self, program: LayerProgram, strategies: Sequence[Strategy], mesh_shape: Shape) -> None:
        self.program, self.mesh_shape = program, mesh_shape
        self._strategies = strategies
        self._batch_dims = program.facts.batch_dims

    def whole(self, place: int) -> float:
        """Bytes of the whole result of an operator."""
        return float(self.program.operators[place].num_bytes)

    def axes(self, place: int) -> tuple[int, ...]:
        """The axes that cut an operator's result; none for place -1."""
        return axes_of(self._strategies[place].output) if place >= 0 else ()

    def working_axes(self, place: int) -> tuple[int, ...]:
        """The axes that divide an operator's work: those that cut its result, and those that sum parts of it."""
        return (*self.axes(place), *self._strategies[place].all_reduce) if place >= 0 else ()

    def parts(self, values: Iterable[Value]) -> FloatArray:
        """Returns the bytes that one device has of some values, in parts."""
        found = np.zeros((2, 2))
        for place, num_bytes, further in values:
            batched, divided, share = self._share(place, num_bytes, further)
            found[batched, divided] += share
        return found

    def alive(self, lifetimes: Sequence[Lifetime]) -> FloatArray:
        """Returns the bytes that one device has of values at each moment, in parts, shape (moments, 2, 2)."""
        steps = np.zeros((max((one.last for one in lifetimes), default=-1) + 2, 2, 2))
        for one in lifetimes:
            batched, divided, share = self._share(one.operator, one.num_bytes, ())
            steps[one.first, batched, divided] += share
            steps[one.last + 1, batched, divided] -= share
        found: FloatArray = np.cumsum(steps, axis=0).clip(min=0.0)
        return found

    def _share(self, place: int, num_bytes: float, further: tuple[int, ...]) -> tuple[int, int, float]:
        axes = (*self.axes(place), *further)
        share = num_bytes
        for axis in axes:
            share /= self.mesh_shape[axis]
        return int(self._batch_dims[place] is not None), int(0 in axes), share


def undominated_moments(alive: FloatArray) -> FloatArray:
    """The moments at which most may be alive, however the parts are scaled; the one of the largest sum comes first.

    >>> undominated_moments(np.array([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 9.0]], [[1.0, 0.0], [0.0, 1.0]]]))
    array([[[0., 0.],
            [0., 9.]],
    <BLANKLINE>
           [[1., 0.],
            [0., 2.]]])
    """
    left = alive.reshape(-1, 4)
    left = left[np.argsort(-left.sum(axis=1), kind="stable")]
    kept = []
    while len(left):
        kept.append(left[0])
        left = left[(left > left[0]).any(axis=1)]
    return np.array(kept).reshape(-1, 2, 2)
