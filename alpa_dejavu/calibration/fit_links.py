"""A link's latency and rate from what collectives took, and sends' from pipelines; and what to measure next.

The model is the alpha-beta model that the planner prices exchanges by, fitted to logarithms of seconds. Each kind of
collective may deviate from it by a factor of its own, so that many measurements of one kind don't outvote the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from alpa_dejavu._util.ties import first_least
from alpa_dejavu.calibration._calibration import KIND_SPREAD
from alpa_dejavu.calibration.bench import CollectiveProbe
from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.problem import Cluster, Device, Link

Array: TypeAlias = NDArray[np.float64]
ENOUGH = 0.05
"""The spread under which nothing needs to be measured any more."""
_PRIOR_SPREAD = (1.5, 1.0)
"""How far latency and rate may be off, in logarithms: links are known by an estimate at best."""
_LATENCY_S = 1e-6
_NOISE, _LEAST_NOISE, _ROUNDS, _STEP = 0.15, 0.03, 2, 1e-4
_FEWEST = 6
"""The noise is told from residuals where there are at least so many."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class LinkFit:
    """A link whose latency and rate are fitted to measured collectives."""

    link: Link  # the link
    spread: Mapping[str, float]  # standard deviation of the logarithm of both figures, by name
    unsure: Array  # standard deviation of the predicted logarithm of the seconds of each of N collectives, shape (N,)


@final
class LinkModel:
    """A model of the seconds of N collectives within a host or between two, which fits the link's latency and rate, and
    a deviation of each kind, from the link with the figures known before as the prior.
    """

    def __init__(self, prior: Link, collectives: Sequence[CollectiveProbe], devices: int) -> None:
        self._prior, self._collectives, self._devices = prior, tuple(collectives), devices
        kinds = tuple(dict.fromkeys(collective.name for collective in collectives))
        self._kind = np.array([kinds.index(collective.name) for collective in collectives])
        self._start = np.r_[np.log([max(prior.latency_s, _LATENCY_S), prior.bytes_per_s]), np.zeros(len(kinds))]
        self._start_spread = np.r_[_PRIOR_SPREAD, np.full(len(kinds), KIND_SPREAD)]

    def fit(self, measured: Mapping[int, float]) -> LinkFit:
        """Returns the link fitted to the seconds of collectives, by their index, and how sure it is."""
        values, covariance = self._fitted(measured)
        spread = np.sqrt(np.diag(covariance))[:2].tolist()
        steps = _STEP * np.eye(len(values))
        moved = [self._log_seconds(values + step) - self._log_seconds(values - step) for step in steps]
        slopes = np.stack(moved, axis=1) / (2 * _STEP)
        unsure = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", slopes, covariance, slopes), 0.0))
        return LinkFit(self._link(values), dict(zip(("latency_s", "bytes_per_s"), spread, strict=True)), unsure)

    def left_out_errors(self, measured: Mapping[int, float]) -> dict[str, float]:
        """Returns the mean and median error on each kind of collective left out in turn; none for fewer than two."""
        rows = np.array(list(measured), dtype=np.int64)
        kinds = np.unique(self._kind[rows])
        errors: list[float] = []
        for kind in kinds if len(kinds) > 1 else ():
            kept = {row: measured[row] for row in rows[self._kind[rows] != kind].tolist()}
            predicted = np.exp(self._log_seconds(self._fitted(kept)[0]))
            errors += [abs(predicted[n] / measured[n] - 1) for n in rows[self._kind[rows] == kind].tolist()]
        return summary(errors)

    def _fitted(self, measured: Mapping[int, float]) -> tuple[Array, Array]:
        rows = np.array(list(measured), dtype=np.int64)
        log_s = np.log(np.array(list(measured.values()), dtype=np.float64))
        return _fit_logs(lambda values: self._log_seconds(values)[rows], log_s, self._start, self._start_spread)

    def _log_seconds(self, values: Array) -> Array:
        """Returns the logarithms of the seconds of all collectives, shape (N,)."""
        link = self._link(values)
        seconds = [predicted_s(collective, link, self._devices) for collective in self._collectives]
        return np.log(seconds) + values[2:][self._kind]

    def _link(self, values: Array) -> Link:
        latency_s, rate = np.exp(values[:2]).tolist()
        prior = self._prior
        # What else is known of the rate of collectives is off by the same factor.
        link = prior.carrying(rate / prior.bytes_per_s)
        return dataclasses.replace(link, latency_s=latency_s, bytes_per_s=rate, send_bytes_per_s=prior.send_bytes_per_s)


def _fit_logs(
    log_seconds: Callable[[Array], Array], measured_log_s: Array, prior: Array, prior_spread: Array
) -> tuple[Array, Array]:
    """Fits P figures to N measured seconds, as logarithms and robustly: a few wrong measurements hardly count.

    `log_seconds` takes the figures' logarithms, (P,), to the predicted seconds', (N,). Returns the fitted logarithms,
    whose expected values and deviations are the prior, and their covariance.
    """
    noise, values = _NOISE, np.array(prior, dtype=np.float64)
    for _ in range(_ROUNDS):

        def residuals(some: Array, noise: float = noise) -> Array:
            return np.r_[(log_seconds(some) - measured_log_s) / noise, (some - prior) / prior_spread]

        solution = least_squares(residuals, values, loss="soft_l1", max_nfev=60)
        values = solution.x
        errors = np.abs(log_seconds(values) - measured_log_s)
        if len(errors) >= _FEWEST:
            # The usual one, from the median: outliers don't raise it.
            noise = max(float(np.median(errors)) / 0.6745, _LEAST_NOISE)
    jacobian = np.asarray(solution.jac)
    return values, np.linalg.inv(jacobian.T @ jacobian)


def predicted_s(collective: CollectiveProbe, link: Link, devices: int) -> float:
    """Returns the alpha-beta model's seconds of a collective over a link, in a host or between two."""
    device = Device("any", 1.0, {"float32": 1.0}, 1.0, 1.0)
    cluster = Cluster.uniform("two hosts", ["a", "b"], device, devices, link, link)
    per_host = collective.size // 2 if collective.across else collective.size
    hosts = (0,) * per_host + (1,) * (collective.size - per_host)
    group = Group(cluster, hosts, collective.concurrent)
    return float(AlphaBeta().seconds(collective.name, collective.num_bytes, group))


def fit_sends(prior: Link, sizes: Sequence[float], seconds: Sequence[float]) -> tuple[Link, dict[str, float]]:
    """Returns the link with latency and rate fitted to sends of these sizes in bytes, if any, and their spreads."""
    latency_s, rate = prior.sending
    sent = np.array(sizes, dtype=np.float64)

    def log_seconds(values: Array) -> Any:
        return np.logaddexp(values[0], np.log(np.maximum(sent, 1.0)) - values[1])

    start = np.log([max(latency_s, _LATENCY_S), rate])
    values, covariance = _fit_logs(
        log_seconds, np.log(np.array(seconds, dtype=np.float64)), start, np.array(_PRIOR_SPREAD)
    )
    latency_s, rate = np.exp(values).tolist()
    spread = dict(zip(("send_latency_s", "send_bytes_per_s"), np.sqrt(np.diag(covariance)).tolist(), strict=True))
    return dataclasses.replace(prior, send_latency_s=latency_s, send_bytes_per_s=rate), spread


def summary(errors: ArrayLike) -> dict[str, float]:
    """Returns the mean ("mape") and the median ("median_ape") of errors, which are fractions; {} where there are none.

    >>> summary([0.1, 0.2, 0.6])["median_ape"]
    0.2
    """
    values = np.asarray(errors, dtype=np.float64)
    return {"mape": float(values.mean()), "median_ape": float(np.median(values))} if values.size else {}


def next_measurement(spread: ArrayLike, done: Collection[int]) -> int | None:
    """Returns the index of the candidate whose predicted seconds are least sure, the first of equal ones; None if none
    but those `done` is above `ENOUGH`: the greedy rule for a G-optimal design, which makes the worst prediction sure.

    References:
        Kiefer and Wolfowitz, The equivalence of two extremum problems, Canadian Journal of Mathematics 12, 1960.

    >>> next_measurement([0.3, 0.1, 0.2], done=[0])
    2
    >>> next_measurement([0.3, 0.01, 0.02], done=[0]) is None
    True
    """
    left = np.array(spread, dtype=np.float64)
    left[list(done)] = -np.inf
    best = int(first_least(-left)) if left.size else 0
    return best if left.size and left[best] > ENOUGH else None
