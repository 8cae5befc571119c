"""A link's latency and rate from what collectives took on it, and those of sends from pipelines.

The model is the alpha-beta model that the planner prices exchanges by. Each collective may deviate from it by a factor
of its own, as the families of programs do (see `_fit_devices`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from alpa_dejavu.calibration._calibration import KIND_SPREAD
from alpa_dejavu.calibration._log_fit import Array, Fitted, LogModel, fit_logs, summary
from alpa_dejavu.calibration.bench import Collective
from alpa_dejavu.costs.communication import AlphaBeta, Group
from alpa_dejavu.problem import Cluster, Device, Link

__all__ = ["LinkModel", "fit_sends"]

_PRIOR_SPREAD = (1.5, 1.0)
"""How far latency and rate may be off, in logarithms: links are known by an estimate at best."""
_LATENCY_S = 1e-6


@final
class LinkModel:
    """A model of the seconds that collectives take over a link, which fits the link's latency and rate to measured
    seconds.

    A deviation of each kind of collective is fitted along with latency and rate; all as logarithms.

    Args:
        prior: the link with the figures that are known before measuring.
        collectives: all collectives that can be measured, all within a host or all between two hosts.
        devices: how many devices a host has.
    """

    def __init__(self, prior: Link, collectives: Sequence[Collective], devices: int) -> None:
        self._prior, self._collectives = prior, tuple(collectives)
        self._devices = devices
        self._kinds = tuple(dict.fromkeys(one.name for one in collectives))
        self._kind = np.array([self._kinds.index(one.name) for one in collectives])
        start = np.log([max(prior.latency_s, _LATENCY_S), prior.bytes_per_s])
        self._model = LogModel(
            self._log_seconds,
            self._kind,
            weights=np.ones(len(self._kind)),
            prior=np.r_[start, np.zeros(len(self._kinds))],
            prior_spread=np.r_[_PRIOR_SPREAD, np.full(len(self._kinds), KIND_SPREAD)],
        )

    def fit(self, measured: Mapping[int, float]) -> Fitted[Link]:
        """Returns the link with latency and rate fitted to measured collectives, and how sure they are.

        Args:
            measured: the measured seconds by the index of the collective; there may be none.
        """
        found = self._model.fit(measured)
        spread = dict(zip(("latency_s", "bytes_per_s"), found.spread[:2].tolist(), strict=True))
        return Fitted(self._link(found.values), spread, {}, found.spread_of(self._log_seconds))

    def finish(self, measured: Mapping[int, float]) -> Fitted[Link]:
        """Returns the link with latency and rate fitted to measured collectives, how sure they are, and the errors on
        each kind of collective when a fit leaves it out; `measured` has the seconds by the index of the collective.
        """
        errors = list(self._model.left_out_errors(measured).values())
        return dataclasses.replace(self.fit(measured), held_out=summary(errors))

    def _log_seconds(self, values: Array) -> Array:
        """Returns the logarithms of the seconds of all collectives, shape (N,)."""
        link = self._link(values)
        seconds = [predicted_s(one, link, self._devices) for one in self._collectives]
        return np.log(seconds) + values[2:][self._kind]

    def _link(self, values: Array) -> Link:
        latency_s, rate = np.exp(values[:2]).tolist()
        prior = self._prior
        # What else is known of the rate of collectives is off by the same factor.
        link = prior.carrying(rate / prior.bytes_per_s)
        return dataclasses.replace(
            link, latency_s=latency_s, bytes_per_s=rate, send_bytes_per_s=prior.send_bytes_per_s
        )


def predicted_s(collective: Collective, link: Link, devices: int) -> float:
    """Returns the seconds that the alpha-beta model predicts for a collective over a link, in a host or between two
    hosts with so many devices each.
    """
    device = Device("any", 1.0, {"float32": 1.0}, 1.0, 1.0)
    cluster = Cluster.uniform("two hosts", ["a", "b"], device, devices, link, link)
    per_host = collective.size // 2 if collective.across else collective.size
    hosts = (0,) * per_host + (1,) * (collective.size - per_host)
    group = Group(cluster, hosts, collective.concurrent)
    return float(AlphaBeta().seconds(collective.name, collective.num_bytes, group))


def fit_sends(prior: Link, sizes: Sequence[float], seconds: Sequence[float]) -> tuple[Link, dict[str, float]]:
    """Returns the link with the latency and rate of sends between stages fitted to measured ones, and their spreads.

    Args:
        prior: the link with the figures that are known before measuring.
        sizes: bytes of the tensors that were sent; there may be none.
        seconds: the measured seconds of each send.
    """
    latency_s, rate = prior.sending
    sent = np.array(sizes, dtype=np.float64)

    def log_seconds(values: Array) -> Any:
        return np.logaddexp(values[0], np.log(np.maximum(sent, 1.0)) - values[1])

    found = fit_logs(
        log_seconds,
        np.log(np.array(seconds, dtype=np.float64)),
        np.ones(len(sent)),
        np.log([max(latency_s, _LATENCY_S), rate]),
        np.array(_PRIOR_SPREAD),
    )
    latency_s, rate = np.exp(found.values).tolist()
    spread = dict(zip(("send_latency_s", "send_bytes_per_s"), found.spread.tolist(), strict=True))
    return dataclasses.replace(prior, send_latency_s=latency_s, send_bytes_per_s=rate), spread
