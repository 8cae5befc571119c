"""Rules that choose replicas by their distances: Krum, Multi-Krum, the smallest diameter, the nearest to the mean."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, final

import jax.numpy as jnp
import numpy as np

from alpa_dejavu.training.robust._arrays import (
    distances,
    finite_rows,
    mean_of,
    ranks,
    shrunk,
    squared_distances,
    weighted,
)
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas

_MOST_SUBSETS = 20_000


@final
@dataclasses.dataclass(frozen=True)
class Krum(Rule):
    """The gradient of the replica whose nearest others are the nearest.

    Attributes:
        wrong: how many replicas may be wrong.
        neighbours: how many of the nearest others are added up; None: N - wrong - 2, as in the paper.

    References:
        Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries, NIPS 2017.
    """

    wrong: int = 1
    neighbours: int | None = None

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        return _krum("krum", gradients, self.wrong, self.neighbours, 1)


@final
@dataclasses.dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the replicas that Krum would choose first.

    Attributes:
        wrong: how many replicas may be wrong.
        kept: how many are chosen; None: N - wrong.
        neighbours: how many of the nearest others are added up; None: N - wrong - 2.

    References:
        Blanchard, El Mhamdi, Guerraoui and Stainer, Machine Learning with Adversaries, NIPS 2017.
    """

    wrong: int = 1
    kept: int | None = None
    neighbours: int | None = None

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
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

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        n = check_replicas("mda", gradients, self.wrong, 2 * self.wrong + 1, "N > 2 wrong")
        if math.comb(n, self.wrong) > _MOST_SUBSETS:
            raise ValueError(f"mda: replicas is {n}, but must have at most {_MOST_SUBSETS} subsets of "
                             f"{n - self.wrong}; choose another rule, such as multi-krum")  # fmt: skip
        valid = finite_rows(gradients)
        subsets = np.array(list(itertools.combinations(range(n), n - self.wrong)))
        apart = squared_distances(gradients, valid) + jnp.where(jnp.diag(~valid), jnp.inf, 0)
        widest = jnp.max(apart[subsets[:, :, None], subsets[:, None, :]], axis=(1, 2))
        # Where more aren't finite than may be wrong, those that are finite are taken.
        found = jnp.isfinite(jnp.min(widest))
        members = np.zeros((len(subsets), n), bool)
        members[np.arange(len(subsets))[:, None], subsets] = True
        chosen = jnp.asarray(members)[jnp.argmin(widest)]
        return _mean_of_chosen(gradients, jnp.where(found, chosen, valid))


@final
@dataclasses.dataclass(frozen=True)
class DropFarthest(Rule):
    """The mean without the `wrong` replicas that are the farthest from the mean of all.

    Attributes:
        wrong: how many replicas are dropped.
    """

    wrong: int = 1

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        check_replicas("drop-farthest", gradients, self.wrong, self.wrong + 1, "N > wrong")
        valid = finite_rows(gradients)
        small = shrunk(gradients, valid)
        far = distances(small, mean_of(small, valid), valid)
        return _mean_of_chosen(gradients, lowest(far, jnp.sum(valid) - _left(valid, self.wrong)) & valid)


def lowest(values: Any, kept: Any) -> Any:
    """Returns which are the `kept` lowest of some values [N], the first ones of equal ones."""
    return ranks(values) < kept


def _krum(name: str, gradients: Any, wrong: int, neighbours: int | None, kept: int | None) -> Aggregated:
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


def _left(valid: Any, wrong: int) -> Any:
    """How many may be wrong of those that are finite."""
    return jnp.clip(wrong - jnp.sum(~valid), 0, jnp.maximum(jnp.sum(valid) - 1, 0))


def _mean_of_chosen(gradients: Any, chosen: Any) -> Aggregated:
    weights = chosen / jnp.maximum(jnp.sum(chosen), 1)
    return Aggregated(weighted(gradients, weights), weights, ())
