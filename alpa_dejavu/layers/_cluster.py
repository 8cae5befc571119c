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
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.jax_api import core
from alpa_dejavu.layers._jaxprs import variables
from alpa_dejavu.layers.cluster_search import IntArray, allowed, least_layers, reachable, search
from alpa_dejavu.layers.features.flatten import product_flop

EPS = 0.5
"""How much more than its share of the operations a layer may have, as Alpa has it."""


@final
@dataclasses.dataclass(frozen=True)
class Clustering:
    """A cut of a jaxpr's equations into layers: layer i is the equations ends[i-1]..ends[i]-1. `most_bytes` are the
    most that any layer takes from earlier ones; infinite if the rule had to be broken, for want of matrix products.
    """

    ends: tuple[int, ...]
    most_bytes: float


@final
class EquationClusters:
    """A clusterer by Alpa's rule, where a layer may have (1 + `eps`) times the average of the layers' operations."""

    def __init__(self, equations: Sequence[core.JaxprEqn], eps: float = EPS) -> None:
        self._num = len(equations)
        self._eps = eps
        self._heavy, self._flop = costs(equations)
        self._uses = _uses(equations)

    @property
    def products(self) -> list[int]:
        """Returns the indices of the equations that contain matrix products or convolutions."""
        return [int(n) for n in np.flatnonzero(self._heavy)]

    def cut(self, num_layers: int) -> Clustering:
        """Cuts the equations into so many layers; raises ValueError if there are fewer, or there is no way."""
        if not 1 <= num_layers <= self._num:
            raise ValueError(
                f"the loss has {self._num} equations, so it can't be cut into {num_layers} layers; "
                f"ask for {self._near(num_layers)} layers"
            )
        begins, ends = self._allowed(num_layers)
        most, starts = self._searched(begins, ends, num_layers, within=True)
        if not np.isfinite(most[self._num, num_layers]):
            most, starts = self._searched(begins, ends, num_layers, within=False)
        cuts = [self._num]
        for number in range(num_layers, 0, -1):
            cuts.append(int(starts[cuts[-1], number]))
        if cuts[-1] != 0 or min(cuts) < 0:
            raise ValueError(
                f"the loss can't be cut into {num_layers} layers that have at most {1 + self._eps:g} times the average "
                f"of the operations each: they are in {int(self._heavy.sum())} equations (products, and calls that "
                f"have any), which stay whole; ask for {self._near(num_layers)} layers, or a larger eps"
            )
        return Clustering(tuple(reversed(cuts[:-1])), float(most[self._num, num_layers]))

    def _searched(self, begins: IntArray, ends: IntArray, num_layers: int, within: bool) -> tuple[Any, Any]:
        """The best ways to cut the first r equations into q layers, at index [r, q]: the most bytes that a layer takes,
        and where the last layer starts; with `within` those layers are left out that aren't allowed.
        """
        shape = (self._num + 1, num_layers + 1)
        most, total, uneven = (np.full(shape, np.inf, dtype=np.float32) for _ in range(3))
        starts = np.full(shape, -1, dtype=np.int32)
        sizes, first_users, firsts, takings, operands, next_users = self._uses
        search(
            begins, ends, least_layers(begins, ends), within, sizes, first_users, firsts, takings, operands, next_users,
            most, total, uneven, starts,
        )  # fmt: skip
        return most, starts

    def _near(self, num_layers: int) -> str:
        """The two possible numbers of layers that are nearest to one that isn't, as text."""
        nearest = sorted(range(1, self._num + 1), key=lambda n: abs(n - num_layers))
        possible = itertools.islice((n for n in nearest if self.possible(n)), 2)
        return " or ".join(map(str, sorted(possible))) or "another number of"

    def possible(self, num_layers: int) -> bool:
        """Returns whether Alpa's `AutoLayerOption` could cut a jaxpr's equations into that many layers by its rule."""
        return reachable(*self._allowed(num_layers), num_layers)

    @functools.cached_property
    def _allowed(self) -> Callable[[int], tuple[IntArray, IntArray]]:
        return functools.cache(lambda num_layers: allowed(self._heavy, self._flop, num_layers, self._eps))

    def best_number(self) -> int:
        """Returns the largest number of layers of which none takes more bytes from earlier layers than with two layers:
        the number that Alpa takes for "auto". It is found by bisection.
        """
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


def _uses(equations: Sequence[core.JaxprEqn]) -> tuple[NDArray[Any], ...]:
    """The values that equations make and take, as `search` takes them: from `sizes` to `next_users`."""
    numbers: dict[core.Var, int] = {}
    sizes: list[float] = []
    firsts, takings = [0], [0]
    operands: list[int] = []
    users: list[list[int]] = []
    places: list[list[int]] = []
    for n, equation in enumerate(equations):
        for value in dict.fromkeys(numbers[var] for var in variables(equation.invars) if var in numbers):
            users[value].append(n)
            places[value].append(len(operands))
            operands.append(value)
        for var in equation.outvars:
            numbers[var] = len(sizes)
            sizes.append(float(getattr(var.aval, "size", 0) * getattr(var.aval.dtype, "itemsize", 0)))
            users.append([])
            places.append([])
        firsts.append(len(sizes))
        takings.append(len(operands))
    next_users = np.full(len(operands), -1, dtype=np.int64)
    for at, by in zip(places, users, strict=True):
        next_users[at[:-1]] = by[1:]
    first_users = [by[0] if by else -1 for by in users]
    whole = (np.array(column, dtype=np.int64) for column in (first_users, firsts, takings, operands))
    return np.array(sizes, dtype=np.float64), *whole, next_users


def costs(equations: Sequence[core.JaxprEqn]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Returns which equations have matrix products or convolutions, and each one's floating-point operations, as Alpa
    counts them; both of shape (equations,). An equation that has a `jaxpr` (a jitted or rematerialised function, a
    scan) counts the equations of that once. All others count nothing, even if they have a product inside, as a cond
    may.
    """
    counts: dict[int, tuple[bool, float]] = {}

    def count(equation: core.JaxprEqn) -> tuple[bool, float]:
        if "jaxpr" in equation.params:
            return count_all(equation.params["jaxpr"])
        flop = product_flop(equation.primitive.name, equation.params, equation.invars, equation.outvars)
        return flop is not None, flop or 0.0

    def count_all(jaxpr: Any) -> tuple[bool, float]:
        if id(jaxpr) not in counts:
            inner = [count(equation) for equation in jaxpr.eqns]
            counts[id(jaxpr)] = any(heavy for heavy, _ in inner), sum(flop for _, flop in inner)
        return counts[id(jaxpr)]

    counted = [count(equation) for equation in equations]
    return np.array([c[0] for c in counted], dtype=np.bool_), np.array([c[1] for c in counted], dtype=np.float64)
