"""Kernels that stream: a start, then bytes at a share of the memory's rate, and never under the floor of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from alpa_dejavu.costs.latency._floors import Floors
from alpa_dejavu.costs.latency._kernels import Array, Kernels

if TYPE_CHECKING:
    from alpa_dejavu.costs.fitted_format import StreamsData

_BANDWIDTH, _LENGTH = 8e11, 1e3
_LOSS = 0.05
_PRIOR = 0.3
_MOST_ROWS = 2500


@final
class Streams:
    """A latency model of kernels that stream through memory: max(floor, start + traffic / share), smoothed.

    The floor is a launch's seconds, traffic the seconds at the memory's full rate, and share the part of that rate that
    is reached, which varies with the rate and the rows' length. A kind of kernel that wasn't seen gets the median start
    and share of those that were.
    """

    def fit(self, kernels: Kernels, seconds: Array, floors: Floors) -> Streams:
        """Fits the model of streaming kernels to measured seconds by absolute errors of logarithms, so that odd
        measurements have little weight; `floors` has the least seconds of each kind of kernel.
        """
        from scipy.optimize import least_squares

        chosen = np.random.default_rng(0).permutation(len(kernels))[:_MOST_ROWS]
        rows, target = kernels.take(chosen), np.log(seconds[chosen])
        self.ops_ = sorted(set(kernels.op.tolist()))
        self._floors = floors
        floor = np.log(floors.seen(rows))
        count = len(self.ops_)
        guess = np.r_[np.full(count, np.log(1.3e-5)), np.full(count, 0.25), 1.5, 0.0, 0.0]
        prior = np.r_[np.zeros(2 * count + 1), 1 / _PRIOR, 1 / _PRIOR]

        def residuals(values: Array) -> Array:
            return np.r_[self._log_s(values, rows, floor) - target, _LOSS * prior * values]

        self.values_ = least_squares(residuals, guess, loss="soft_l1", f_scale=_LOSS, max_nfev=40).x
        return self

    def log_seconds(self, kernels: Kernels) -> Array:
        """Returns the logarithms of the predicted seconds of streaming kernels on a GPU that wasn't measured."""
        return self._log_s(self.values_, kernels, np.log(self._floors.expected(kernels.op)))

    def state(self) -> StreamsData:
        """Returns the fitted model of kernels that mostly move memory as JSON's types: its parameters, by kind of
        kernel and for all kinds.

        "starts" are logarithms of the seconds that a kernel of each kind takes to start, "shares" those of how many
        times longer than at the full memory rate it takes.
        """
        count, values = len(self.ops_), self.values_.tolist()
        sharpness, of_rate, of_length = values[2 * count :]
        return {
            "ops": self.ops_,
            "starts": values[:count],
            "shares": values[count : 2 * count],
            "sharpness": sharpness,
            "of_rate": of_rate,
            "of_length": of_length,
        }

    @classmethod
    def of_state(cls, state: StreamsData, floors: Floors) -> Streams:
        """Returns the fitted model of streaming kernels with the parameters in `state`, as its method `state` gives
        them; `floors` has the least seconds of each kind of kernel.

        Raises:
            ValueError: there isn't a start and a share for each kind of kernel.
        """
        made = cls()
        made.ops_, made._floors = list(state["ops"]), floors
        count, starts, shares = len(made.ops_), state["starts"], state["shares"]
        for name, each in (("starts", starts), ("shares", shares)):
            if len(each) != count:
                ops = ", ".join(made.ops_)
                raise ValueError(f"streams: {name} has {len(each)} numbers, but must have {count}, for {ops}")
        shared = state["sharpness"], state["of_rate"], state["of_length"]
        made.values_ = np.array([*starts, *shares, *shared], dtype=np.float64)
        return made

    def _log_s(self, values: Array, kernels: Kernels, floor: Array) -> Array:
        count = len(self.ops_)
        starts = np.r_[values[:count], np.median(values[:count])]
        shares = np.r_[values[count : 2 * count], np.median(values[count : 2 * count])]
        sharpness, of_rate, of_length = values[2 * count :]
        op = np.array([self.ops_.index(name) if name in self.ops_ else count for name in kernels.op.tolist()])
        slowdown = shares[op] + of_rate * np.log(kernels.bandwidth / _BANDWIDTH)
        slowdown = slowdown + of_length * np.log(kernels.n / _LENGTH) * (kernels.kind == "rows")
        work = np.log(np.exp(starts[op]) + np.exp(slowdown) * kernels.cached_traffic_s)
        return smooth_maximum(work, floor, 1 + np.exp(min(float(sharpness), 5.0)))


def smooth_maximum(first: Array, second: Array, power: float) -> Array:
    """Returns the logarithm of (a^p + b^p)^(1/p), a smooth maximum, from the logarithms of a and b; p is `power`."""
    high, low = np.maximum(first, second), np.minimum(first, second)
    return high + np.log1p(np.exp(np.clip(power * (low - high), -60, 0))) / power
