"""Rules that choose replicas by their distances: Krum, Multi-Krum, the smallest diameter, the nearest to the mean."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import operator
from typing import TYPE_CHECKING, final

import jax
import jax.numpy as jnp
import numpy as np

from alpa_dejavu.training.robust._arrays import (
    cleared,
    column,
    distances,
    finite_rows,
    mean_of,
    norms,
    ranks,
    shrunk,
    squared_distances,
    weighted,
)
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas

if TYPE_CHECKING:
    from jaxtyping import Array, Int, PyTree

    from alpa_dejavu.training.robust._arrays import Each, Gradients, Which

_MOST_SUBSETS = 20_000


@final
@dataclasses.dataclass(frozen=True)
class Krum(Rule):
    """The gradient of the replica whose nearest others are the nearest.

    Attributes:
        neighbours: how many of the nearest others are added up; None: N - wrong - 2, as in the paper.

    References:
        Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries, NIPS 2017.
    """

    wrong: int = 1
    neighbours: int | None = None

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        return _krum("krum", gradients, self.wrong, self.neighbours, 1)


@final
@dataclasses.dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the replicas that Krum would choose first.

    Attributes:
        kept: how many are chosen; None: N - wrong.
        neighbours: how many of the nearest others are added up; None: N - wrong - 2.

    References:
        Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries, NIPS 2017.
    """

    wrong: int = 1
    kept: int | None = None
    neighbours: int | None = None

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        return _krum("multi-krum", gradients, self.wrong, self.neighbours, self.kept)


@final
@dataclasses.dataclass(frozen=True)
class MinimumDiameter(Rule):
    """The mean of the N - `wrong` replicas whose largest distance to each other is the smallest (MDA).

    All subsets are looked at, so there may be at most 20 000; of equally wide ones the first is taken.

    References:
        El Mhamdi, Guerraoui and Rouault, Distributed Momentum for Byzantine-resilient Learning, ICLR 2021.
    """

    wrong: int = 1

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        n = check_replicas("mda", gradients, self.wrong, 2 * self.wrong + 1, "N > 2 wrong")
        if math.comb(n, self.wrong) > _MOST_SUBSETS:
            raise ValueError(f"mda: replicas is {n}, but must have at most {_MOST_SUBSETS} subsets of "
                             f"{n - self.wrong}; choose another rule, such as multi-krum")  # fmt: skip
        valid = finite_rows(gradients)
        subsets = np.array(list(itertools.combinations(range(n), n - self.wrong)))
        apart = squared_distances(gradients, valid) + jnp.where(jnp.diag(~valid), jnp.inf, 0)
        widest = jnp.max(apart[subsets[:, :, None], subsets[:, None, :]], axis=(1, 2))
        # Where more aren't finite than may be wrong, those that are finite are taken.
        members = np.zeros((len(subsets), n), bool)
        members[np.arange(len(subsets))[:, None], subsets] = True
        chosen = jnp.asarray(members)[jnp.argmin(widest)]
        return _mean_of_chosen(gradients, jnp.where(jnp.isfinite(jnp.min(widest)), chosen, valid))


@final
@dataclasses.dataclass(frozen=True)
class DropFarthest(Rule):
    """The mean without the `wrong` replicas that are the farthest from the mean of all."""

    wrong: int = 1

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("drop-farthest", gradients, self.wrong, self.wrong + 1, "N > wrong")
        valid = finite_rows(gradients)
        small = shrunk(gradients, valid)
        far = distances(small, mean_of(small, valid), valid)
        return _mean_of_chosen(gradients, lowest(far, jnp.sum(valid) - _left(valid, self.wrong)) & valid)


def lowest(values: Each, kept: int | Int[Array, ""]) -> Which:
    """Returns which are the `kept` lowest of some values, the first ones of equal ones."""
    return ranks(values) < kept


def _krum(name: str, gradients: Gradients, wrong: int, neighbours: int | None, kept: int | None) -> Aggregated:
    n = check_replicas(name, gradients, wrong, 2 * wrong + 3, "N > 2 wrong + 2")
    valid = finite_rows(gradients)
    left, num_valid = _left(valid, wrong), jnp.sum(valid)
    near = jnp.maximum(num_valid - left - 2, 1) if neighbours is None else jnp.minimum(neighbours, num_valid - 1)
    # A replica itself comes first, also where others equal it.
    apart = jnp.where(jnp.eye(n, dtype=bool), -1, squared_distances(gradients, valid))
    rank = ranks(apart)
    score = jnp.sum(jnp.where((rank >= 1) & (rank <= near), apart, 0), axis=1)
    wanted = jnp.minimum(num_valid - left if kept is None else kept, jnp.maximum(num_valid - left, 1))
    return _mean_of_chosen(gradients, lowest(jnp.where(valid, score, jnp.inf), wanted) & valid)


def _left(valid: Which, wrong: int) -> Int[Array, ""]:
    """How many may be wrong of those that are finite."""
    return jnp.clip(wrong - jnp.sum(~valid), 0, jnp.maximum(jnp.sum(valid) - 1, 0))


def _mean_of_chosen(gradients: Gradients, chosen: Which) -> Aggregated:
    weights = chosen / jnp.maximum(jnp.sum(chosen), 1)
    return Aggregated(weighted(gradients, weights), weights, ())


@final
@dataclasses.dataclass(frozen=True)
class Zeno(Rule):
    """The mean of the N - `wrong` replicas of the best scores: f(x) - f(x - rate u) - penalty |u|².

    f is the loss on fresh samples: `Evidence.descent` is its first part. One right replica is enough.

    Attributes:
        rate: the learning rate of the step that is tried.
        penalty: the weight of a gradient's squared norm.

    References:
        Xie, Koyejo and Gupta, Zeno: Distributed Stochastic Gradient Descent with Suspicion-based Fault-tolerance,
        ICML 2019.
    """

    wrong: int = 1
    rate: float = 0.1
    penalty: float = 1e-4

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        n = check_replicas("zeno", gradients, self.wrong, self.wrong + 1, "N > wrong")
        if evidence is None or evidence.descent is None:
            raise ValueError("zeno: evidence has no descent, but must have each replica's; give fresh samples")
        valid = finite_rows(gradients)
        score = evidence.descent - self.penalty * jnp.square(norms(cleared(gradients, valid)))
        usable = valid & jnp.isfinite(score)
        return _mean_of_chosen(gradients, lowest(jnp.where(usable, -score, jnp.inf), n - self.wrong) & usable)


@final
@dataclasses.dataclass(frozen=True)
class ZenoPlusPlus(Rule):
    """The mean of the gradients that agree with a trusted one, each scaled to its norm; it may judge one by itself.

    A gradient u is taken if rate <v, u> - penalty |u|² + rate slack is at least 0, v being `Evidence.trusted`. The
    gradient is zeros where none is.

    Attributes:
        slack: how much a gradient may disagree.

    References:
        Xie, Koyejo and Gupta, Zeno++: Robust Fully Asynchronous SGD, ICML 2020.
    """

    rate: float = 0.1
    penalty: float = 1e-4
    slack: float = 0.0

    def aggregate(self, gradients: Gradients, state: PyTree = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("zeno++", gradients, 0, 1, "N > 0")
        if evidence is None or evidence.trusted is None:
            raise ValueError("zeno++: evidence has no trusted gradient, but must have one; give fresh samples")
        valid = finite_rows(gradients)
        trusted, size = evidence.trusted, norms(cleared(gradients, valid))
        length = norms(jax.tree.map(lambda v: v[None], trusted))[0]
        scale = length / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
        scaled = jax.tree.map(lambda x: x * column(scale, x), cleared(gradients, valid))
        products = jax.tree.map(lambda x, v: jnp.sum(x * v, axis=tuple(range(1, x.ndim))), scaled, trusted)
        agreed = functools.reduce(operator.add, jax.tree.leaves(products))
        score = self.rate * (agreed + self.slack) - self.penalty * jnp.square(length)
        return _mean_of_chosen(scaled, valid & jnp.isfinite(score) & (score >= 0) & (size > 0))
