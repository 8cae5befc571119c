"""Equations in a row clustered into layers: the rule of Alpa's `AutoLayerOption`, and what it gives.

Layers must have at least three products and at most (1 + eps) times the average of the operations. Among the ways to
cut them so, the largest number of bytes that any layer takes from those before it is to be least, then the sum of these
bytes, then the unevenness of the numbers of equations. A way wins only if it is better by a ten-thousandth; in what
order they are tried is therefore part of the rule, as are the single-precision numbers that Alpa keeps.

References:
    Zheng et al., Alpa: Automating Inter- and Intra-Operator Parallelism for Distributed Deep Learning, OSDI 2022,
    section 5.2 (operator clustering); `cluster_jaxpr_by_cost` and `search_layer_num` of Alpa 0.2.3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np
from jax import core
from numpy.typing import NDArray

from alpa_dejavu.layers._allowed import allowed, least_layers, reachable
from alpa_dejavu.layers._equations import costs

_TOLERANCE = 1 + 1e-4


@final
@dataclasses.dataclass(frozen=True)
class Clustering:
    """Where layers end.

    Attributes:
        ends: layer i is the equations ends[i-1]..ends[i]-1.
        most_bytes: the objective; infinite if the rule had to be broken, because there aren't enough products.
    """

    ends: tuple[int, ...]
    most_bytes: float


@final
class Clusters:
    """Answers how some equations are cut into any number of layers."""

    def __init__(self, equations: Sequence[core.JaxprEqn], eps: float = 0.5) -> None:
        self._num = len(equations)
        self._eps = eps
        self._heavy, self._flop = costs(equations)
        self._uses = _uses(equations)

    @property
    def products(self) -> list[int]:
        """Which equations have products."""
        return [int(n) for n in np.flatnonzero(self._heavy)]

    def cut(self, num_layers: int) -> Clustering:
        """The layers.

        Raises:
            ValueError: there are fewer equations than layers, or no way was found.
        """
        if not 1 <= num_layers <= self._num:
            raise ValueError(
                f"the loss has {self._num} equations, so it can't be cut into {num_layers} layers; "
                f"ask for 1 to {self._num}"
            )
        begins, ends = self._allowed(num_layers)
        table = _search(self._uses, begins, ends, num_layers, within=True)
        if not np.isfinite(table.most[self._num, num_layers]):
            table = _search(self._uses, begins, ends, num_layers, within=False)
        cuts = [self._num]
        for number in range(num_layers, 0, -1):
            cuts.append(int(table.start[cuts[-1], number]))
        if cuts[-1] != 0 or min(cuts) < 0:
            raise ValueError(self._why_not(num_layers))
        return Clustering(tuple(reversed(cuts[:-1])), float(table.most[self._num, num_layers]))

    def _why_not(self, num_layers: int) -> str:
        """What is wrong with a number of layers, and which near ones there can be."""
        near = sorted(range(1, self._num + 1), key=lambda n: abs(n - num_layers))[:7]
        possible = [str(n) for n in sorted(near) if self.possible(n)]
        return (
            f"the loss can't be cut into {num_layers} layers that have at most {1 + self._eps:g} times the average of "
            f"the operations each: they are in {int(self._heavy.sum())} equations (products, and calls that have any), "
            f"which stay whole; ask for {' or '.join(possible) or 'another number of'} layers, or a larger eps"
        )

    def possible(self, num_layers: int) -> bool:
        """Whether there is a way that keeps the rule."""
        return reachable(*self._allowed(num_layers), num_layers)

    def _allowed(self, num_layers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return allowed(self._heavy, self._flop, num_layers, self._eps)

    def best_number(self) -> int:
        """Alpa's number of layers for "auto": the most that don't take more bytes than two layers do, by bisection."""
        least, most = 2, int(self._heavy.sum() / 3) + 1
        if self._num < 2:
            return 1
        bytes_of_two = self.cut(2).most_bytes
        while most - least > 1:
            middle = (least + most) // 2
            if self.cut(middle).most_bytes > bytes_of_two:
                most = middle
            else:
                least = middle
        return least


def _uses(equations: Sequence[core.JaxprEqn]) -> list[list[tuple[float, list[int]]]]:
    """For each equation its results that others take: bytes, and which equations take it, ascending."""
    made: dict[core.Var, tuple[float, list[int]]] = {}
    uses: list[list[tuple[float, list[int]]]] = []
    for n, equation in enumerate(equations):
        for atom in dict.fromkeys(a for a in equation.invars if isinstance(a, core.Var)):
            if atom in made:
                made[atom][1].append(n)
        results: list[tuple[float, list[int]]] = []
        for var in equation.outvars:
            aval = var.aval
            results.append((float(getattr(aval, "size", 0) * getattr(aval.dtype, "itemsize", 0)), []))
            made[var] = results[-1]
        uses.append(results)
    return uses


@final
class _Table:
    """The best ways to cut the first r equations into q layers, at index [r, q]."""

    def __init__(self, num: int, num_layers: int) -> None:
        shape = (num + 1, num_layers + 1)
        self.most = np.full(shape, np.inf, dtype=np.float32)
        self._enough = np.full(shape, np.inf)
        self.sum = np.full(shape, np.inf, dtype=np.float32)
        self.uneven = np.full(shape, np.inf, dtype=np.float32)
        self.start = np.full(shape, -1, dtype=np.int32)
        self.most[0, 0] = self.sum[0, 0] = 0
        self.uneven[:, 0] = 0

    def offer(self, start: int, first: int, taken: NDArray[np.float32], before: slice) -> None:
        """Layers from `start` to `first` and the ends after it, which take so many bytes.

        They come after the best ways to cut what is before `start` into the numbers of layers of the slice `before`.
        """
        rows, after = slice(first, first + len(taken)), slice(before.start + 1, before.stop + 1)
        most = np.maximum(self.most[start, before], taken[:, None])
        row, column = np.nonzero(most <= self._enough[rows, after])
        if not len(row):
            return
        q, end, most = column + after.start, row + first, most[row, column]
        old_most = self.most[end, q]
        total = self.sum[start, q - 1] + taken[row]
        uneven = self.uneven[start, q - 1] + start**2 / q - end**2 / (q + 1) + (end - start) ** 2
        old_sum = self.sum[end, q]
        near = (total <= old_sum.astype(np.float64) * _TOLERANCE) & (uneven < self.uneven[end, q])
        better = (most < old_most) | (total < old_sum) | near
        end, q = end[better], q[better]
        self.most[end, q] = most = most[better]
        self._enough[end, q] = most.astype(np.float64) * _TOLERANCE
        self.sum[end, q] = total[better]
        self.uneven[end, q] = uneven[better]
        self.start[end, q] = start


def _search(
    uses: Sequence[Sequence[tuple[float, list[int]]]],
    begins: NDArray[np.int64],
    ends: NDArray[np.int64],
    num_layers: int,
    within: bool,
) -> _Table:
    """Tries all starts in ascending order; `within` leaves out the layers that aren't allowed."""
    num = len(uses)
    table = _Table(num, num_layers)
    ahead = least_layers(begins, ends) if within else np.zeros(num + 1, dtype=np.int64)
    arriving = np.zeros(num + 1)
    waiting: list[list[tuple[float, list[int], int]]] = [[] for _ in range(num)]
    for start in range(num):
        first, last = int(begins[start]), min(int(ends[start]), num + 1)
        tried = (first, last) if within else (start + 1, num + 1)
        columns = np.flatnonzero(np.isfinite(table.most[start])) if within else np.arange(num_layers)
        before = (
            slice(int(columns[0]), min(num_layers, num_layers + 1 - int(ahead[start]))) if len(columns) else slice(0)
        )
        if before.start is not None and before.start < before.stop and tried[0] < tried[1]:
            taken = np.cumsum(arriving[start + 1 : tried[1]])[tried[0] - start - 1 :].astype(np.float32)
            taken[: max(first - tried[0], 0)] = np.inf
            taken[max(last - tried[0], 0) :] = np.inf
            table.offer(start, tried[0], taken, before)
        for size, users, n in waiting[start]:
            arriving[start + 1] -= size
            _next(arriving, waiting, size, users, n + 1)
        for size, users in uses[start]:
            _next(arriving, waiting, size, users, 0)
    return table


def _next(
    arriving: NDArray[np.float64],
    waiting: list[list[tuple[float, list[int], int]]],
    size: float,
    users: list[int],
    n: int,
) -> None:
    """A value arrives in a layer with the first of its users there."""
    if n < len(users):
        arriving[users[n] + 1] += size
        waiting[users[n]].append((size, users, n))
