"""Collectives by an alpha-beta model whose alpha and beta depend smoothly on the group, fitted robustly.

Seconds are alpha(n, hosts, sharing) + volume / rate * slowdown(n, hosts, sharing), times a smooth bend where the two
are about equal (the library changes its protocol there). Collectives share the dependence and deviate from it a
little: what one of them says of a group that another wasn't measured on helps the other.
"""

from __future__ import annotations

import dataclasses
from typing import final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from alpa_dejavu.communication._collectives import Array, Collectives

NAMES = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")

_LOSS = 0.04
_DEVIATION, _CURVE = 1.0, 0.5
_BENDS = np.linspace(-4, 4, 6)
_FOLDS = 5
_ENDS = (0.05, 0.95)
_GUESS_S = 8e-5


@final
@dataclasses.dataclass(frozen=True, eq=False)
class CollectiveSeconds:
    """Means, and the ends of 90 % intervals, in seconds; `in_domain`: whether such groups and sizes were fitted."""

    mean: Array
    lower: Array
    upper: Array
    in_domain: NDArray[np.bool_]


@final
class FittedCollectives:
    """One model for groups within hosts, or one for groups across hosts; `fit` is given rows of one of the two."""

    def fit(self, rows: Collectives, seconds: ArrayLike, groups: ArrayLike) -> FittedCollectives:
        """Fits to measured seconds; the interval holds for groups that weren't seen, by `groups`' labels.

        Raises:
            ValueError: rows within and across hosts are mixed, or seconds aren't finite and above zero.
        """
        measured = np.asarray(seconds, dtype=np.float64)
        if len(np.unique(rows.across)) != 1:
            raise ValueError("collectives: groups within and across hosts are fitted apart; select one of the two")
        if not (np.isfinite(measured) & (measured > 0)).all():
            raise ValueError("collectives: seconds must be finite and above zero; leave the suspects out")
        self._curve = _Curve().fit(rows, measured)
        fold = np.unique(np.asarray(groups), return_inverse=True)[1] % _FOLDS
        errors = []
        for held in np.unique(fold):
            out = fold == held
            inner = self._curve if out.all() else _Curve().fit(rows.take(~out), measured[~out])
            errors.append(np.log(measured[out]) - inner.log_seconds(rows.take(out)))
        low, high = np.quantile(np.concatenate(errors), _ENDS)
        self._ends = min(float(low), 0.0), max(float(high), 0.0)
        self._sizes = set(rows.size.tolist())
        self._most_bytes = float(rows.num_bytes.max())
        return self

    def predict(self, rows: Collectives) -> CollectiveSeconds:
        """Seconds of each."""
        log_s = self._curve.log_seconds(rows)
        known = np.isin(rows.size, sorted(self._sizes)) & (rows.num_bytes <= 2 * self._most_bytes)
        ends = np.exp(log_s + self._ends[0]), np.exp(log_s + self._ends[1])
        return CollectiveSeconds(np.exp(log_s), *ends, known)


@final
class _Curve:
    """The means."""

    def fit(self, rows: Collectives, seconds: Array) -> _Curve:
        target = np.log(seconds)
        self._names = sorted(set(rows.name.tolist()))
        design = self._design(rows)
        columns = design.shape[1]
        bends = len(self._names) * len(_BENDS)
        guess = np.zeros(2 * columns + bends)
        guess[0] = np.log(_GUESS_S)
        weights = np.r_[self._weights(rows), self._weights(rows), np.full(bends, 1 / _CURVE)]

        def residuals(values: Array) -> Array:
            return np.r_[self._log_s(values, rows, design) - target, _LOSS * weights * (values - guess)]

        self.values_ = least_squares(residuals, guess, loss="soft_l1", f_scale=_LOSS, max_nfev=30).x
        return self

    def log_seconds(self, rows: Collectives) -> Array:
        return self._log_s(self.values_, rows, self._design(rows))

    def _log_s(self, values: Array, rows: Collectives, design: Array) -> Array:
        columns = design.shape[1]
        start = design @ values[:columns]
        work = np.log(rows.volume_s) + design @ values[columns : 2 * columns]
        balance: Array = work - start
        bumps = np.exp(-0.5 * (balance[:, None] - _BENDS) ** 2)
        bends = np.vstack([values[2 * columns :].reshape(len(self._names), -1), np.zeros(len(_BENDS))])
        return np.asarray(np.logaddexp(start, work) + (bumps * bends[self._codes(rows)]).sum(axis=1))

    def _codes(self, rows: Collectives) -> NDArray[np.int64]:
        """Which of the collectives that were fitted each is; one more for any other."""
        return np.array([self._names.index(n) if n in self._names else len(self._names) for n in rows.name.tolist()])

    def _shared(self, rows: Collectives) -> Array:
        size = np.log2(rows.size) - 2
        return np.stack([np.ones(len(rows)), size, size**2, np.log2(rows.sharing), np.log2(rows.hosts) - 1.5], axis=1)

    def _design(self, rows: Collectives) -> Array:
        shared = self._shared(rows)
        codes = self._codes(rows)
        own = [shared * (codes == code)[:, None] for code in range(len(self._names))]
        return np.hstack([shared, *own])

    def _weights(self, rows: Collectives) -> Array:
        """Of the prior: the shared part hardly any, deviations some; across hosts, curvature is doubted."""
        across = bool(rows.across.all())
        shared = np.array([0.01, 0.1, 2.0 if across else 0.1, 0.5, 0.5])
        own = np.array([0.2, 1.0, 4.0 if across else 1.0, 2.0, 2.0]) / _DEVIATION
        return np.r_[shared, np.tile(own, len(self._names))]
