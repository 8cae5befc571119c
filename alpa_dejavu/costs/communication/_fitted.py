"""Collectives by an alpha-beta model whose alpha and beta depend smoothly on the group, fitted robustly.

Seconds are those of a launch and of the messages one after the other, within hosts and between them, plus those of
the volume times a slowdown(n, hosts, sharing), and a smooth bend where the two are about equal (the library changes its
protocol there). Collectives share the dependence and deviate from it a little: what one of them says of a group that
another wasn't measured on helps the other.

References:
    Barber, Candès, Ramdas and Tibshirani, Predictive inference with the jackknife+, Annals of Statistics 49(1), 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alpa_dejavu.costs.communication._collectives import Array, Collectives, PredictedSeconds, interval_ends

_LOSS = 0.04
_CURVE = 0.5
_MOST_ROWS = 600
_FAR, _LARGE = 12.0, 0.5
_BENDS = np.linspace(-4, 4, 6)
_FOLDS = 5
_OF_GROUP = 4
_LAUNCH_S, _BETWEEN_S, _WITHIN_S = 5e-5, 1.5e-4, 2e-5


@final
class FittedCollectives:
    """A fitted model of the seconds of collectives, either in groups of devices within hosts or in groups across hosts.

    Attributes:
        outliers: indices of the measured rows that a first fit found far off all others; the final fit leaves them out.
        left_out_errors: log(measured / predicted) of each row but the outliers, by a fit without its group; of one
            group alone by the fit itself.
    """

    def fit(self, rows: Collectives, seconds: ArrayLike, groups: ArrayLike) -> FittedCollectives:
        """Fits the model to measured seconds, and its 90 % interval to the errors on groups that were left out in turn;
        `groups` has a label of each row, such as its mesh.

        Raises:
            ValueError: rows within and across hosts are mixed, or seconds aren't finite and above zero.
        """
        measured = np.asarray(seconds, dtype=np.float64)
        if len(np.unique(rows.across)) != 1:
            raise ValueError("collectives: groups within and across hosts are fitted apart; select one of the two")
        if not (np.isfinite(measured) & (measured > 0)).all():
            raise ValueError("collectives: seconds must be finite and above zero; leave the suspects out")
        self.outliers = _CollectiveCurve().fit(rows, measured).outliers(rows, measured)
        kept = np.ones(len(rows), dtype=np.bool_)
        kept[self.outliers] = False
        rows, measured, groups = rows.take(kept), measured[kept], np.asarray(groups)[kept]
        self._curve = _CollectiveCurve().fit(rows, measured)
        fold = np.unique(np.asarray(groups), return_inverse=True)[1] % _FOLDS
        self.left_out_errors = errors = np.zeros(len(rows))
        seen = np.zeros(len(rows), dtype=np.bool_)
        for out in (fold == number for number in np.unique(fold)):
            # One fold alone can't be left out.
            curve = self._curve if out.all() else _CollectiveCurve().fit(rows.take(~out), measured[~out])
            errors[out] = np.log(measured[out]) - curve.log_seconds(rows.take(out))
            seen[out] = out.all() or np.isin(rows.size[out], rows.size[~out])
        self._ends = {
            size_seen: interval_ends(errors[seen == size_seen] if (seen == size_seen).any() else errors)
            for size_seen in (True, False)
        }
        self._sizes = set(rows.size.tolist())
        self._most_bytes = float(rows.num_bytes.max())
        return self

    def predict(self, rows: Collectives) -> PredictedSeconds:
        """Predicts the seconds of each collective with a 90 % interval, and whether it is like those that were
        fitted.
        """
        seen = np.isin(rows.size, sorted(self._sizes))
        ends = np.where(seen[:, None], self._ends[True], self._ends[False])
        return PredictedSeconds.of(self._curve.log_seconds(rows), ends, seen & (rows.num_bytes <= 2 * self._most_bytes))

    def state(self) -> dict[str, Any]:
        """Returns the parameters of the fitted model of collectives as JSON's types, without the measurements."""
        return {
            "collectives": self._curve.names,
            "values": self._curve.values_.tolist(),
            "ends": {"seen sizes": self._ends[True].tolist(), "other sizes": self._ends[False].tolist()},
            "sizes": sorted(int(size) for size in self._sizes),
            "most_bytes": self._most_bytes,
            "outliers": self.outliers.tolist(),
        }

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> FittedCollectives:
        """Returns the fitted model with the parameters that `state` gives; ValueError for another number of values than
        its collectives have.
        """
        model, curve, ends = cls(), _CollectiveCurve(), state["ends"]
        curve.names, curve.values_ = list(state["collectives"]), np.array(state["values"], dtype=np.float64)
        given_count, count = len(curve.values_), len(curve._weights(across=False))
        if given_count != count:
            raise ValueError(f"values has {given_count} numbers, but must have {count}, for {', '.join(curve.names)}")
        model._curve = curve
        seen, other = (np.array(interval, dtype=np.float64) for interval in (ends["seen sizes"], ends["other sizes"]))
        model._ends = {True: seen, False: other}
        model._sizes, model._most_bytes = {float(size) for size in state["sizes"]}, float(state["most_bytes"])
        model.outliers = np.array(state["outliers"], dtype=np.int64)
        return model

    @property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the collectives (such as "all_reduce") that the model was fitted to."""
        return tuple(self._curve.names)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Returns the sizes of groups, in devices, that the model was fitted to."""
        return tuple(sorted(int(size) for size in self._sizes))

    @property
    def most_bytes(self) -> float:
        """Returns the bytes of the largest tensor that the model was fitted to."""
        return self._most_bytes


@final
class _CollectiveCurve:
    """Fits the mean seconds of collectives, without an interval."""

    def fit(self, rows: Collectives, seconds: Array) -> _CollectiveCurve:
        from scipy.optimize import least_squares

        self.names = sorted(set(rows.name.tolist()))
        chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:_MOST_ROWS])
        rows, target = rows.take(chosen), np.log(seconds[chosen])
        designs = self._designs(rows)
        guess = self._guess(designs)
        weights = self._weights(bool(rows.across.all()))

        def residuals(values: Array) -> Array:
            return np.r_[self._log_s(values, rows, designs) - target, _LOSS * weights * (values - guess)]

        self.values_ = least_squares(residuals, guess, loss="soft_l1", f_scale=_LOSS, max_nfev=30).x
        return self

    def log_seconds(self, rows: Collectives) -> Array:
        return self._log_s(self.values_, rows, self._designs(rows))

    def outliers(self, rows: Collectives, seconds: Array) -> NDArray[np.int64]:
        """Returns the indices of the measured collectives whose error under the fit is large, and many times the median
        error.
        """
        errors = np.abs(np.log(seconds) - self.log_seconds(rows))
        return np.flatnonzero(errors > max(_FAR * float(np.median(errors)), _LARGE))

    def _log_s(self, values: Array, rows: Collectives, designs: tuple[Array, Array]) -> Array:
        shared, dependence = designs
        width, deep = shared.shape[1], dependence.shape[1]
        launch, between, within = (shared @ part for part in values[: 3 * width].reshape(3, width))
        rest = values[3 * width :]
        hops = rows.hops
        start = np.logaddexp(launch, np.logaddexp(between + _log(hops[0]), within + _log(hops[1])))
        start = start + dependence @ rest[:deep]
        work = (
            np.log(rows.volume_s)
            + shared @ rest[deep : deep + width]
            + dependence @ rest[deep + width : 2 * deep + width]
        )
        balance: Array = work - start
        bumps = np.exp(-0.5 * (balance[:, None] - _BENDS) ** 2)
        bends = np.vstack([rest[2 * deep + width :].reshape(len(self.names), -1), np.zeros(len(_BENDS))])
        return np.asarray(np.logaddexp(start, work) + (bumps * bends[self._codes(rows)]).sum(axis=1))

    def _codes(self, rows: Collectives) -> NDArray[np.int64]:
        """Returns for each row which of the fitted collectives it is; one more than the last for any other."""
        codes = np.searchsorted(self.names, rows.name)
        of_names = np.array([*self.names, ""])[codes] == rows.name
        return np.where(of_names, codes, len(self.names))

    def _designs(self, rows: Collectives) -> tuple[Array, Array]:
        """Columns for what is one number for each collective, and for what depends on the group."""
        codes = self._codes(rows)
        is_code = [(codes == code) * 1.0 for code in range(len(self.names))]
        size, hosts = np.log2(rows.size) - 2, np.log2(rows.hosts) - 1.5
        group = np.stack([size, size**2, np.log2(rows.sharing) - 1, hosts], axis=1)
        return (
            np.stack([np.ones(len(rows)), *is_code], axis=1),
            np.hstack([group, *(group * column[:, None] for column in is_code)]),
        )

    def _guess(self, designs: tuple[Array, Array]) -> Array:
        width, deep = designs[0].shape[1], designs[1].shape[1]
        starts = np.zeros((3, width))
        starts[:, 0] = np.log([_LAUNCH_S, _BETWEEN_S, _WITHIN_S])
        return np.r_[starts.ravel(), np.zeros(2 * deep + width + len(self.names) * len(_BENDS))]

    def _weights(self, across: bool) -> Array:
        """Returns the prior's weights: what collectives share is hardly held, how each deviates more.

        Across hosts there are few groups, so more is held there.
        """
        kinds = len(self.names)
        start = np.r_[0.1, np.full(kinds, 0.3)]
        shared = np.array([20.0, 40.0, 10.0, 20.0] if across else [1.0, 1.0, 1.0, 1.0])
        of_rate = np.array([10.0, 40.0, 5.0, 10.0] if across else [0.1, 0.1, 1.0, 1.0])
        own = np.full(4 * kinds, 40.0 if across else 2.0)
        bends = np.full(kinds * len(_BENDS), 1 / _CURVE)
        return np.r_[start, start, start, shared, own, start, of_rate, own, bends]


def _log(values: Array) -> Array:
    return np.log(np.maximum(values, 1e-9))
