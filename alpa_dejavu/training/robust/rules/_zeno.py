"""Rules that try gradients on samples of their own: Zeno by the loss after a step, Zeno++ by a trusted gradient."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any, final

import jax
import jax.numpy as jnp

from alpa_dejavu.training.robust._arrays import cleared, column, finite_rows, norms, weighted
from alpa_dejavu.training.robust.rules._base import Aggregated, Evidence, Rule, check_replicas
from alpa_dejavu.training.robust.rules._distances import lowest


@final
@dataclasses.dataclass(frozen=True)
class Zeno(Rule):
    """The mean of the N - `wrong` replicas of the best scores: f(x) - f(x - rate u) - penalty |u|².

    f is the loss on fresh samples: `Evidence.descent` is its first part. One right replica is enough.

    Attributes:
        wrong: how many replicas are left out.
        rate: the learning rate of the step that is tried.
        penalty: the weight of a gradient's squared norm.

    References:
        Xie, Koyejo and Gupta, Zeno: Distributed Stochastic Gradient Descent with Suspicion-based Fault-tolerance,
        ICML 2019.
    """

    wrong: int = 1
    rate: float = 0.1
    penalty: float = 1e-4

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        n = check_replicas("zeno", gradients, self.wrong, self.wrong + 1, "N > wrong")
        if evidence is None or evidence.descent is None:
            raise ValueError("zeno: evidence has no descent, but must have each replica's; give fresh samples")
        valid = finite_rows(gradients)
        score = evidence.descent - self.penalty * jnp.square(norms(cleared(gradients, valid)))
        usable = valid & jnp.isfinite(score)
        chosen = lowest(jnp.where(usable, -score, jnp.inf), n - self.wrong) & usable
        weights = chosen / jnp.maximum(jnp.sum(chosen), 1)
        return Aggregated(weighted(gradients, weights), weights, ())


@final
@dataclasses.dataclass(frozen=True)
class ZenoPlusPlus(Rule):
    """The mean of the gradients that agree with a trusted one, each scaled to its norm; it may judge one by itself.

    A gradient u is taken if rate <v, u> - penalty |u|² + rate slack is at least 0, v being `Evidence.trusted`.

    Attributes:
        rate: the learning rate.
        penalty: the weight of a gradient's squared norm.
        slack: how much a gradient may disagree.

    References:
        Xie, Koyejo and Gupta, Zeno++: Robust Fully Asynchronous SGD, ICML 2020.
    """

    rate: float = 0.1
    penalty: float = 1e-4
    slack: float = 0.0

    def aggregate(self, gradients: Any, state: Any = None, evidence: Evidence | None = None) -> Aggregated:
        """Returns the mean of those that are taken, or zeros where none is."""
        check_replicas("zeno++", gradients, 0, 1, "N > 0")
        if evidence is None or evidence.trusted is None:
            raise ValueError("zeno++: evidence has no trusted gradient, but must have one; give fresh samples")
        valid = finite_rows(gradients)
        trusted, size = evidence.trusted, norms(cleared(gradients, valid))
        one = norms(jax.tree_util.tree_map(lambda v: v[None], trusted))[0]
        scale = one / jnp.maximum(size, jnp.finfo(size.dtype).tiny)
        scaled = jax.tree_util.tree_map(lambda x: x * column(scale, x), cleared(gradients, valid))
        products = jax.tree_util.tree_map(lambda x, v: jnp.sum(x * v, axis=tuple(range(1, x.ndim))), scaled, trusted)
        agreed = functools.reduce(operator.add, jax.tree_util.tree_leaves(products))
        score = self.rate * (agreed + self.slack) - self.penalty * jnp.square(one)
        taken = valid & jnp.isfinite(score) & (score >= 0) & (size > 0)
        weights = taken / jnp.maximum(jnp.sum(taken), 1)
        return Aggregated(weighted(scaled, weights), weights, ())
