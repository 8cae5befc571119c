"""A device's figures from what programs took on it: the roofline's parameters, fitted to logarithms of seconds.

The model is the one that the planner prices stages by, so its errors here are those of the planner. Every family of
programs may deviate from it by a factor of its own. That keeps many programs of one kind from outvoting the others, and
it makes a family that wasn't measured yet one that is known little of. A stage's family is none of these, so the
deviations widen the spread of the figures and are no part of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.calibration._calibration import FAMILY_SPREAD
from alpa_dejavu.calibration._log_fit import Array, Fitted, LogModel, summary
from alpa_dejavu.calibration.operators import SINGLE, Program, joined, operators
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.problem import Device

__all__ = ["DeviceModel"]

_PRIOR_SPREAD: Mapping[str, float] = {
    "flop_per_s": 0.5,
    "vector_flop_per_s": 0.7,
    "memory_bytes_per_s": 0.7,
    "dilated_flop_per_s": 1.0,
    "extreme_flop_per_s": 1.0,
    "strided": 1.0,
    "kernel_s": 1.0,
    "transcendental_flop": 1.0,
    "small_products": 0.5,
    "call_s": 1.0,
}
"""How far the priors may be off: those of a data sheet are peaks, those of the driver's probes ran alone."""
_STRIDED = ("bytes_per_s", "cached_bytes_per_s", "near_bytes_per_s")
_SINGLE_WEIGHT = 0.5
_CALL_S, _KERNEL_S = 1e-4, 1e-6


@final
class DeviceModel:
    """A model of the seconds that probe programs take on a device, which fits the device's figures (such as rates) to
    measured seconds.

    The seconds of a call, and a deviation of each family of programs (those of one name), are fitted along with the
    figures; all as logarithms.

    Args:
        prior: the device with the figures that are known before measuring.
        programs: all probe programs that can be measured.
    """

    def __init__(self, prior: Device, programs: Sequence[Program]) -> None:
        self.prior, self._programs = prior, tuple(programs)
        # A program runs again and again on the same arrays, so what it is passed stays in the cache.
        together, self._starts = joined([operators(program) for program in programs])
        self._operators = dataclasses.replace(together, passed_bytes=np.zeros(len(together)))
        dtypes = [dtype for dtype in prior.flop_per_s if any(program.dtype == dtype for program in programs)]
        figures = _figures(prior, dtypes)
        self._names = (*figures, "call_s")
        self._families = tuple(dict.fromkeys(program.name for program in programs))
        self._family = np.array([self._families.index(program.name) for program in programs])
        own = [_PRIOR_SPREAD[name.split("[")[0]] for name in self._names]
        self._model = LogModel(
            self._log_seconds,
            self._family,
            weights=np.array([_SINGLE_WEIGHT if program.name in SINGLE else 1.0 for program in programs]),
            prior=np.r_[np.log([*figures.values(), _CALL_S]), np.zeros(len(self._families))],
            prior_spread=np.r_[own, np.full(len(self._families), FAMILY_SPREAD)],
        )

    def fit(self, measured: Mapping[int, float]) -> Fitted[Device]:
        """Returns the device with figures fitted to measured programs, and how sure they are.

        Args:
            measured: the measured seconds by the index of the program; there may be none.
        """
        found = self._model.fit(measured)
        spread = dict(zip(self._names, found.spread[: len(self._names)].tolist(), strict=True))
        del spread["call_s"]
        unsure = found.spread_of(self._log_seconds)
        return Fitted(self._device(found.values), spread, {}, unsure)

    def finish(self, measured: Mapping[int, float]) -> Fitted[Device]:
        """Returns the device with figures fitted to measured programs, how sure they are, and the errors on families of
        programs when a fit leaves them out; `measured` has the seconds by the index of the program.

        Where the figures from before predict parts of models better than fits that had not seen their family, they
        stand, as sure as they were right.
        """
        fitted, before = self._model.left_out_errors(measured), self._model.prior_errors(measured)
        found = dataclasses.replace(self.fit(measured), held_out=summary(list(fitted.values())))
        parts = [n for n in fitted if self._programs[n].name not in SINGLE]
        if not parts:
            return found
        left_out, known = (float(np.mean([errors[n] for n in parts])) for errors in (fitted, before))
        if left_out <= known:
            return found
        refused = (
            f"fitted figures are {left_out:.1%} off on parts of models that the fit had not seen, those from before "
            f"{known:.1%}: these stand"
        )
        spread = {name: max(sure, known) for name, sure in found.spread.items()}
        return dataclasses.replace(found, figures=self.prior, spread=spread, refused=refused)

    def _log_seconds(self, values: Array) -> Array:
        """Returns the logarithms of the seconds of all programs, shape (N,)."""
        each = AnalyticLatency().predict(self._operators, self._device(values)).mean_s
        call_s = np.exp(values[len(self._names) - 1])
        log_s: NDArray[np.float64] = np.log(np.add.reduceat(each, self._starts) + call_s)
        return log_s + values[len(self._names) :][self._family]

    def _device(self, values: Array) -> Device:
        prior, found = self.prior, dict(zip(self._names, np.exp(values).tolist(), strict=False))
        # A dtype that wasn't measured keeps its ratio to single precision.
        faster = found["flop_per_s[float32]"] / prior.flop_per_s["float32"]
        rates = {dtype: found.get(f"flop_per_s[{dtype}]", rate * faster) for dtype, rate in prior.flop_per_s.items()}
        small, strided = prior.small_products, prior.strided
        if strided is not None:
            known = {name: found[f"strided[{name}]"] for name in _STRIDED if f"strided[{name}]" in found}
            strided = dataclasses.replace(strided, **known)
        return dataclasses.replace(
            prior,
            flop_per_s=rates,
            vector_flop_per_s=found["vector_flop_per_s"],
            memory_bytes_per_s=found["memory_bytes_per_s"],
            kernel_s=found["kernel_s"],
            transcendental_flop=found["transcendental_flop"],
            dilated_flop_per_s=found.get("dilated_flop_per_s"),
            extreme_flop_per_s=found.get("extreme_flop_per_s"),
            strided=strided,
            small_products=None if small is None else dataclasses.replace(small, share=found["small_products"]),
        )


def _figures(prior: Device, dtypes: Sequence[str]) -> dict[str, float]:
    """Returns the device's figures that are fitted, by name; those that it doesn't declare are left out."""
    figures = {f"flop_per_s[{dtype}]": prior.flop_per_s[dtype] for dtype in dtypes}
    figures |= {name: getattr(prior, name) for name in ("vector_flop_per_s", "memory_bytes_per_s")}
    figures |= {"kernel_s": max(prior.kernel_s, _KERNEL_S), "transcendental_flop": prior.transcendental_flop}
    if prior.small_products is not None:
        figures["small_products"] = prior.small_products.share
    for name in ("dilated_flop_per_s", "extreme_flop_per_s"):
        if getattr(prior, name) is not None:
            figures[name] = getattr(prior, name)
    if prior.strided is not None:
        rates = {name: getattr(prior.strided, name) for name in _STRIDED}
        figures |= {f"strided[{name}]": rate for name, rate in rates.items() if rate is not None}
    return figures
