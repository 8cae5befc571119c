"""The log of suspicion: who is named a suspect, and who is proposed to be left out."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias, final

import jax.numpy as jnp
import numpy as np

from alpa_dejavu.problem import checks
from alpa_dejavu.training.robust._arrays import cleared, column, distances, finite_rows, middle, norms
from alpa_dejavu.training.robust.rules import Aggregated

if TYPE_CHECKING:
    from jaxtyping import ArrayLike, Float, Int

    from alpa_dejavu.training.robust._arrays import Each, Gradients, Rows

    Signs: TypeAlias = Mapping[str, ArrayLike]

logger = logging.getLogger(__name__)

_SHIFT = 3.0
_LEAST_SPREADS = (0.5, 0.3)
"""The least deviations: of a distance's logarithm, which a median of few replicas makes wide, and of a cosine."""
_LEAST_STEPS = 3
_WINDOW, _BEFORE = 20, 5
_SIGNS = ("far from the gradient", "against the gradient")
_FRESH = "fresh samples"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Suspects:
    """Who has been suspicious, step by step.

    Evidence against a replica is added up, and what speaks for it taken away, never below 0 (a CUSUM). There are three
    kinds, each a logarithm of a ratio of likelihoods:

    - It is far from the gradient: the logarithm of its distance over the median one is normal, and a wrong replica's is
      larger by three standard deviations.
    - It points against the gradient, of which its own share is taken away: the cosine is normal around the mean of the
      last steps, and a wrong replica's around the same with the opposite sign.

    Means and deviations are medians of all replicas' in the last 20 steps, deviations at least 0.5 and 0.3. A replica
    is named when its evidence comes to log(kinds · groups · N · steps between false names): the mean time between false
    names is then at least that long, as far as the likelihoods are right. So that it doesn't hang on their tails, one
    step gives at most a third of that evidence: at least three steps are needed. One that has been named for long
    without a break is proposed to be left out.

    Attributes:
        steps_between_false_names: how many steps there shall be on average between names of right replicas.
        patience: for how many steps one is named before it is proposed to be left out.
        evidence: for each group that of both kinds against each replica; for "fresh samples", of one.
        seen_before: for each group both kinds' values in the last steps; for "fresh samples" the median descent, and
            the descents less it.

    References:
        Lorden, Procedures for Reacting to a Change in Distribution, Annals of Mathematical Statistics 1971.
    """

    replicas: int
    steps_between_false_names: float = 10_000.0
    patience: int = 50
    evidence: Mapping[str, Float[np.ndarray, "kinds N"]] = dataclasses.field(default_factory=dict)
    seen_before: Mapping[str, Float[np.ndarray, "steps 2 N"]] = dataclasses.field(default_factory=dict)
    named_for: Int[np.ndarray, " N"] | None = None
    step: int = 0

    def __post_init__(self) -> None:
        checks.count("suspects", "replicas", self.replicas)
        checks.count("suspects", "patience", self.patience)
        if not self.steps_between_false_names >= 1:
            raise ValueError(f"suspects: steps_between_false_names is {self.steps_between_false_names}, but must be at "
                             "least 1; give a number of steps")  # fmt: skip

    @property
    def named(self) -> tuple[int, ...]:
        """The replicas that are suspects now."""
        return () if self.named_for is None else tuple(np.flatnonzero(self.named_for > 0).tolist())

    @property
    def left_out(self) -> tuple[int, ...]:
        """The replicas that are proposed to be left out."""
        return () if self.named_for is None else tuple(np.flatnonzero(self.named_for >= self.patience).tolist())

    def seen(self, suspicion: Signs, agreement: Signs | None = None, descent: ArrayLike | None = None) -> Suspects:
        """Returns the log after a step, and tells changes by `logging`.

        Args:
            suspicion: for each group each replica's distance over the median one, as `Judged.suspicion`.
            agreement: for each group each replica's cosine with the others' gradient, as `Judged.agreement`; None: it
                isn't looked at.
            descent: by how much a step along each replica's gradient lowers the loss on fresh samples, as
                `RobustValueAndGrad.descents`; None: it isn't looked at.

        Raises:
            ValueError: it is of another number of replicas.
        """
        values = {group: self._values(group, far, None if agreement is None else agreement[group])
                  for group, far in suspicion.items()}  # fmt: skip
        if descent is not None:
            values[_FRESH] = self._descents(descent)
        enough = math.log(2 * len(values) * self.replicas * self.steps_between_false_names)
        evidence, kept = {}, {}
        for group, now in values.items():
            before = self.seen_before.get(group, np.zeros((0, 2, self.replicas)))
            ratios = _of_descents(now, before) if group == _FRESH else _log_likelihoods(now, before)
            added = np.minimum(ratios, enough / _LEAST_STEPS)
            # No more than enough: one that recovers is forgiven as fast as it was named.
            evidence[group] = np.clip(self.evidence.get(group, np.zeros_like(added)) + added, 0, enough)
            kept[group] = np.concatenate([before, now[None]])[-_WINDOW:]
        most = np.max([np.max(ratios, axis=0) for ratios in evidence.values()], axis=0)
        named_before = np.zeros(self.replicas, np.int64) if self.named_for is None else self.named_for
        # A name stays while at least half of the evidence does.
        is_named = (most >= enough - 1e-9) | ((named_before > 0) & (most >= enough / 2))
        after = dataclasses.replace(self, evidence=evidence, seen_before=kept, step=self.step + 1,
                                    named_for=np.where(is_named, named_before + 1, 0))  # fmt: skip
        self._log_changes(after)
        return after

    def _values(self, group: str, far: ArrayLike, agreement: ArrayLike | None) -> Float[np.ndarray, "2 N"]:
        for name, values in (("suspicion", far), ("agreement", agreement)):
            self._check(f"{name}[{group!r}]", values)
        cosine = np.full(self.replicas, np.nan) if agreement is None else np.asarray(agreement, np.float64)
        return np.stack([np.log(np.maximum(np.asarray(far, np.float64), 1e-3)), cosine])

    def _descents(self, descent: ArrayLike) -> Float[np.ndarray, "2 N"]:
        self._check("descent", descent)
        finite = np.where(np.isfinite(descent), np.asarray(descent, np.float64), -np.inf)
        middle = np.median(finite)
        return np.stack([np.full(self.replicas, middle), finite - (middle if np.isfinite(middle) else 0)])

    def _check(self, name: str, values: ArrayLike | None) -> None:
        if values is not None and np.shape(values) != (self.replicas,):
            raise ValueError(f"{name} is of shape {np.shape(values)}, but must be ({self.replicas},); give a value for "
                             "each replica")  # fmt: skip

    def _log_changes(self, after: Suspects) -> None:
        for replica in sorted(set(after.named) - set(self.named)):
            group = max(after.evidence, key=lambda name: after.evidence[name][:, replica].max())
            sign = _SIGNS[int(np.argmax(after.evidence[group][:, replica]))] if group != _FRESH else "not descending"
            logger.warning("step %d: replica %d is a suspect: it is %s, most in %s", self.step, replica, sign, group)
        for replica in sorted(set(after.left_out) - set(self.left_out)):
            logger.warning("step %d: replica %d has been a suspect for %d steps: leave it out; `alpa-dejavu replan "
                           "PLAN.json --without-replica %d` says what that costs", self.step, replica, self.patience,
                           replica)  # fmt: skip
        for replica in sorted(set(self.named) - set(after.named)):
            logger.info("step %d: replica %d is no suspect any more", self.step, replica)


def _log_likelihoods(now: Float[np.ndarray, "2 N"], before: Float[np.ndarray, "steps 2 N"]) -> Float[np.ndarray, "2 N"]:
    """Both kinds' logarithms of how much likelier a wrong replica is than a right one."""
    ratios = np.where(np.isposinf(now), np.inf, 0.0)  # what isn't finite is wrong
    if len(before) < _BEFORE:
        return ratios
    far, cosine = (kind[np.isfinite(kind)] for kind in np.moveaxis(before, 1, 0))
    if far.size:
        middle, spread = _middle_and_spread(far, _LEAST_SPREADS[0])
        ratios[0] = np.where(np.isfinite(now[0]), _SHIFT * ((now[0] - middle) / spread - _SHIFT / 2), ratios[0])
    if cosine.size:
        middle, spread = _middle_and_spread(cosine, _LEAST_SPREADS[1])
        ratios[1] = np.where(np.isfinite(now[1]), -2 * max(middle, 0.0) * now[1] / spread**2, 0)
    return ratios


def _of_descents(now: Float[np.ndarray, "2 N"], before: Float[np.ndarray, "steps 2 N"]) -> Float[np.ndarray, "1 N"]:
    """The logarithm of how much likelier a wrong replica's descent is than a right one's."""
    if len(before) < _BEFORE:
        return np.zeros((1, now.shape[1]))
    middle = max(float(np.median(before[:, 0])), 0.0)
    spread = max(1.4826 * float(np.median(np.abs(before[:, 1]))), _LEAST_SPREADS[1] * middle)
    if not (middle > 0 and math.isfinite(spread)):
        return np.zeros((1, now.shape[1]))
    return -2 * middle / spread * (now[1:] + middle) / spread


def _middle_and_spread(values: Float[np.ndarray, " ..."], least: float) -> tuple[float, float]:
    middle = float(np.median(values))
    return middle, max(1.4826 * float(np.median(np.abs(values - middle))), least)


def suspicion_of(gradients: Gradients, result: Aggregated) -> Each:
    """Returns each replica's distance to a rule's gradient over the median one; infinite where it isn't finite."""
    far = result.distances
    if far is None:
        far = distances(gradients, result.gradient, finite_rows(gradients))
    return jnp.where(far == 0, 0, far / middle(far, jnp.isfinite(far)))


def agreement_of(gradients: Gradients, result: Aggregated) -> Each:
    """Returns each replica's cosine with a rule's gradient less its own share in it; 0 where it isn't finite."""
    clean, whole = cleared(gradients, finite_rows(gradients)), [c[None] for c in result.gradient]
    size, most = norms(clean), norms(whole)
    products = [_over_lengths(x, size) * _over_lengths(c, most) for x, c in zip(clean, whole, strict=True)]
    both = sum(jnp.sum(x, axis=tuple(range(1, x.ndim))) for x in products)
    share = result.weights if result.weights.shape == size.shape else 0  # those of buckets are no replica's
    own = share * size  # the length of the replica's own part
    longer = jnp.maximum(own, most)
    own, most = own / longer, most / longer
    cosine = (most * both - own) / jnp.sqrt(jnp.maximum(most**2 - 2 * most * own * both + own**2, 0))
    return jnp.where(jnp.isfinite(cosine), jnp.clip(cosine, -1, 1), 0)


def _over_lengths(x: Rows, lengths: Each) -> Rows:
    """A leaf of gradients over their lengths; those of none are zeros."""
    return jnp.where(column(lengths, x) > 0, x / column(lengths, x), 0)
