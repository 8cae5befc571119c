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
import itertools
from collections.abc import Sequence
from typing import Any, final

import numpy as np
from jax import core
from numpy.typing import NDArray

from alpa_dejavu.layers.cluster_search import allowed, least_layers, reachable, search
from alpa_dejavu.layers.features._products import convolution_flop, dot_flop

EPS = 0.5
"""How much more than its share of the operations a layer may have, as Alpa has it."""


@final
@dataclasses.dataclass(frozen=True)
class Clustering:
    """A cut of a jaxpr's equations into layers by the rule of Alpa's `AutoLayerOption`.

    Attributes:
        ends: layer i is the equations ends[i-1]..ends[i]-1, and layer 0 begins with equation 0.
        most_bytes: the largest number of bytes that any layer takes from earlier layers; infinite if the rule had to be
            broken, because there aren't enough matrix products.
    """

    ends: tuple[int, ...]
    most_bytes: float


@final
class Clusters:
    """A clusterer of a jaxpr's equations, which cuts them into any number of layers as Alpa's `AutoLayerOption` does.

    `eps` is how much more than the average of the layers' floating-point operations a layer may have, as a share of it.
    """

    def __init__(self, equations: Sequence[core.JaxprEqn], eps: float = EPS) -> None:
        self._num = len(equations)
        self._eps = eps
        self._heavy, self._flop = costs(equations)
        self._uses = _Uses.of(equations)
        self._known: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    @property
    def products(self) -> list[int]:
        """Returns the indices of the equations that contain matrix products or convolutions."""
        return [int(n) for n in np.flatnonzero(self._heavy)]

    def cut(self, num_layers: int) -> Clustering:
        """Cuts a jaxpr's equations into a given number of layers, by the rule of Alpa's `AutoLayerOption` if possible.

        Raises:
            ValueError: there are fewer equations than layers, or no way was found to cut them.
        """
        if not 1 <= num_layers <= self._num:
            raise ValueError(
                f"the loss has {self._num} equations, so it can't be cut into {num_layers} layers; "
                f"ask for {self._near(num_layers)} layers"
            )
        begins, ends = self._allowed(num_layers)
        table = _Table(self._uses, begins, ends, num_layers, within=True)
        if not np.isfinite(table.most[self._num, num_layers]):
            table = _Table(self._uses, begins, ends, num_layers, within=False)
        cuts = [self._num]
        for number in range(num_layers, 0, -1):
            cuts.append(int(table.start[cuts[-1], number]))
        if cuts[-1] != 0 or min(cuts) < 0:
            raise ValueError(self._why_not(num_layers))
        return Clustering(tuple(reversed(cuts[:-1])), float(table.most[self._num, num_layers]))

    def _why_not(self, num_layers: int) -> str:
        """Returns in words why there can't be so many layers, and which near numbers there can be."""
        return (
            f"the loss can't be cut into {num_layers} layers that have at most {1 + self._eps:g} times the average of "
            f"the operations each: they are in {int(self._heavy.sum())} equations (products, and calls that have any), "
            f"which stay whole; ask for {self._near(num_layers)} layers, or a larger eps"
        )

    def _near(self, num_layers: int) -> str:
        """Returns the two possible numbers of layers that are nearest to one that isn't."""
        nearest = sorted(range(1, self._num + 1), key=lambda n: abs(n - num_layers))
        possible = itertools.islice((n for n in nearest if self.possible(n)), 2)
        return " or ".join(map(str, sorted(possible))) or "another number of"

    def possible(self, num_layers: int) -> bool:
        """Returns whether Alpa's `AutoLayerOption` could cut a jaxpr's equations into that many layers by its rule."""
        return reachable(*self._allowed(num_layers), num_layers)

    def _allowed(self, num_layers: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if num_layers not in self._known:
            self._known[num_layers] = allowed(self._heavy, self._flop, num_layers, self._eps)
        return self._known[num_layers]

    def best_number(self) -> int:
        """Returns the largest number of layers of which none takes more bytes from earlier layers than with two layers.

        That is the number that Alpa's `AutoLayerOption` takes for "auto"; it is found by bisection.
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


@final
@dataclasses.dataclass(frozen=True, eq=False)
class _Uses:
    """The values that equations make and take, as `alpa_dejavu.layers.cluster_search.search` takes them."""

    sizes: NDArray[np.float64]
    first_users: NDArray[np.int64]
    made: NDArray[np.int64]
    takings: NDArray[np.int64]
    taken_values: NDArray[np.int64]
    next_users: NDArray[np.int64]

    @classmethod
    def of(cls, equations: Sequence[core.JaxprEqn]) -> _Uses:
        numbers: dict[core.Var, int] = {}
        sizes: list[float] = []
        made, takings = [0], [0]
        taken: list[int] = []
        users: list[list[int]] = []
        places: list[list[int]] = []
        for n, equation in enumerate(equations):
            for atom in dict.fromkeys(a for a in equation.invars if isinstance(a, core.Var)):
                value = numbers.get(atom)
                if value is not None:
                    users[value].append(n)
                    places[value].append(len(taken))
                    taken.append(value)
            for var in equation.outvars:
                numbers[var] = len(sizes)
                sizes.append(float(getattr(var.aval, "size", 0) * getattr(var.aval.dtype, "itemsize", 0)))
                users.append([])
                places.append([])
            made.append(len(sizes))
            takings.append(len(taken))
        next_users = np.full(len(taken), -1, dtype=np.int64)
        for at, by in zip(places, users, strict=True):
            next_users[at[:-1]] = by[1:]
        return cls(
            sizes=np.array(sizes, dtype=np.float64),
            first_users=np.array([by[0] if by else -1 for by in users], dtype=np.int64),
            made=np.array(made, dtype=np.int64),
            takings=np.array(takings, dtype=np.int64),
            taken_values=np.array(taken, dtype=np.int64),
            next_users=next_users,
        )


@final
class _Table:
    """The best ways to cut the first r equations into q layers, at index [r, q]: bytes at most, and where they start.

    With `within` those layers are left out that aren't allowed.
    """

    def __init__(
        self, uses: _Uses, begins: NDArray[np.int64], ends: NDArray[np.int64], num_layers: int, within: bool
    ) -> None:
        shape = (len(begins) + 1, num_layers + 1)
        self.most, total, uneven = (np.full(shape, np.inf, dtype=np.float32) for _ in range(3))
        self.start = np.full(shape, -1, dtype=np.int32)
        search(
            begins, ends, least_layers(begins, ends), within,
            uses.sizes, uses.first_users, uses.made, uses.takings, uses.taken_values, uses.next_users,
            self.most, total, uneven, self.start,
        )  # fmt: skip


def costs(equations: Sequence[core.JaxprEqn]) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Returns which equations have matrix products, and each one's floating-point operations, as Alpa counts them.

    Both arrays have shape (equations,). Matrix products and convolutions count, by their operations. An equation that
    has a `jaxpr` (a jitted or rematerialised function, a scan) counts the equations of that once. All other equations
    count nothing, even if they have a product inside, as a `custom_vjp` or a cond may.
    """
    known: dict[int, tuple[bool, float]] = {}
    counted = [_count(equation, known) for equation in equations]
    return np.array([c[0] for c in counted], dtype=np.bool_), np.array([c[1] for c in counted], dtype=np.float64)


def _count(equation: core.JaxprEqn, known: dict[int, tuple[bool, float]]) -> tuple[bool, float]:
    if "jaxpr" in equation.params:
        return _count_all(equation.params["jaxpr"], known)
    name = equation.primitive.name
    if name not in ("dot_general", "conv_general_dilated"):
        return False, 0.0
    left, right = (tuple(atom.aval.shape) for atom in equation.invars[:2])
    result = equation.outvars[0].aval
    if name == "dot_general":
        return True, dot_flop(equation.params, left, result.size)
    return True, convolution_flop(equation.params, left, right, result.shape)


def _count_all(jaxpr: Any, known: dict[int, tuple[bool, float]]) -> tuple[bool, float]:
    """The sum over a jaxpr's equations; `known` has what was counted before, by the jaxpr's identity."""
    if id(jaxpr) not in known:
        counted = [_count(inner, known) for inner in jaxpr.eqns]
        known[id(jaxpr)] = any(heavy for heavy, _ in counted), sum(flop for _, flop in counted)
    return known[id(jaxpr)]
