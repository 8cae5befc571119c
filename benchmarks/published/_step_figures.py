"""The few figures that training frameworks have in common, the models and profiles that they make, and their fit to
published steps: of each source what its steps are off in common is told from what all have in common, and no source
teaches a figure alone.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from alpa_dejavu.costs.kernels import InSteps
from alpa_dejavu.costs.latency import KernelLatency
from alpa_dejavu.costs.overlap import named_overlap
from alpa_dejavu.costs.runtime import RuntimeProfile
from published._jobs import Job

__all__ = [
    "FIGURES", "LEFT_OUT", "SPREADS", "Figure", "Fit", "Values", "figures_of_runtime", "fitted", "kernels_in_steps",
    "latency_of", "left_out_of", "overlap_text", "profile_of", "values_of",
]  # fmt: skip

Values = Mapping[str, float]
LEFT_OUT = Path(__file__).with_name("left_out.json")
"""The figures that are fitted without each source, by its name."""


@final
@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of training steps.

    Attributes:
        median, spread: what is believed of it before any measurement: the median, and the standard deviation of its
            logarithm.
    """

    name: str
    median: float
    spread: float
    meaning: str


FIGURES = (
    Figure("products", 1.0, 0.08, "seconds of products and attention in a step over those alone, on a hot GPU"),
    Figure("attention_backward", 1.2, 0.25, "seconds of backward passes of attention over those that papers give"),
    Figure("elementwise", 1.1, 0.2, "seconds of fused operators between products over those of their bytes"),
    Figure("eager", 2.0, 0.3, "the same where they aren't fused, over that"),
    Figure("collectives", 1.3, 0.2, "seconds of collectives of activations over those alone"),
    Figure("slowdown", 1.25, 0.1, "how much slower computing and communicating are beside each other"),
    Figure("launch_s", 2.5e-5, 0.7, "seconds in which Python launches an operator; compiled programs take a fifth"),
    Figure("step_s", 2e-2, 1.0, "further seconds of a step"),
)
SPREADS = {"source": 0.1, "own": 0.06}
"""How far steps are off before any measurement: in common in a source, and a step's own; of the logarithm."""
_EAGER = ("fsdp", "deepspeed")
_COMPILED, _FIFTH = ("jax", "maxtext", "torchtitan"), 0.2
"""The frameworks that launch from compiled programs; that they take a fifth is an estimate."""
_PLAIN = ("jax",)
_DIGITS = 6


def kernels_in_steps(values: Values) -> InSteps:
    """How much longer kernels take in a step than alone."""
    return InSteps(_rounded(values["products"]), _rounded(values["attention_backward"]))


def figures_of_runtime(name: str, values: Values) -> dict[str, float]:
    """The figures of a framework's profile."""
    elementwise = values["elementwise"] * (values["eager"] if name in _EAGER else 1.0)
    launch_s = values["launch_s"] * (_FIFTH if name in _COMPILED else 1.0)
    own = {
        "launch_s": launch_s, "elementwise": elementwise, "collectives": values["collectives"],
        "step_s": values["step_s"],
    }  # fmt: skip
    return {figure: _rounded(value) for figure, value in own.items()}


def overlap_text(name: str, values: Values) -> str:
    """The work that a framework does at the same time, with how much slower both then are."""
    if name in _PLAIN:
        return "none"
    slowdown = _rounded(max(values["slowdown"], 1.0))
    return f"gradients:{slowdown}:{slowdown}"


def profile_of(known: RuntimeProfile, values: Values) -> RuntimeProfile:
    """A framework's profile with other figures, and the kind of overlap that it had."""
    name, kind = known.name.partition("+")[0], known.overlap.kind
    slowdown = _rounded(max(values["slowdown"], 1.0))
    overlap = named_overlap(kind if kind == "none" else f"{kind}:{slowdown}:{slowdown}")
    return dataclasses.replace(known, **figures_of_runtime(name, values), overlap=overlap)  # type: ignore[arg-type]


def latency_of(values: Values) -> KernelLatency:
    """The model of kernels with other factors in steps."""
    return KernelLatency(in_steps=kernels_in_steps(values))


@functools.cache
def left_out_of(source: str) -> dict[str, float] | None:
    """The figures that were fitted without a source; None for one that wasn't fitted to."""
    known: dict[str, Any] = json.loads(LEFT_OUT.read_text(encoding="utf-8"))["sources"]
    return known.get(source)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


Array = NDArray[np.float64]
_STEP, _ROUNDS, _FAR = 0.1, 3, 1.5
"""By how much of its spread a figure is changed for a derivative; how often derivatives are taken anew; and from how
many standard deviations on an error counts by its size, not by its square."""


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Fit:
    """Figures that were fitted, and what predictions depend on near them.

    Attributes:
        place: of each figure how many of its spreads the logarithm is from its median, shape (figures,).
        logs: the logarithm of predicted seconds of each job, shape (jobs,).
        slopes: how it changes with each figure, shape (jobs, figures).
        measured: the logarithm of measured seconds, shape (jobs,).
        sources: the number of each job's source, shape (jobs,).
    """

    place: Array
    logs: Array
    slopes: Array
    measured: Array
    sources: NDArray[np.intp]

    def without(self, source: int) -> Array:
        """The place where the fit ends without a source, by the same slopes."""
        return _solved(self, self.sources != source)


def values_of(place: Array) -> dict[str, float]:
    """The figures at a place."""
    return {one.name: float(one.median * np.exp(one.spread * at)) for one, at in zip(FIGURES, place, strict=True)}


def fitted(jobs: Sequence[Job], predicted_s: Callable[[Values], Array]) -> Fit:
    """Fits the figures to jobs of several sources.

    Args:
        predicted_s: predicts the seconds of each job's step, shape (jobs,), by given figures.
    """
    names = list(dict.fromkeys(job.source for job in jobs))
    sources = np.array([names.index(job.source) for job in jobs])
    measured = np.log([job.measured_s for job in jobs])
    place = np.zeros(len(FIGURES))
    for _ in range(_ROUNDS):
        logs = np.log(predicted_s(values_of(place)))
        moved = [place + _STEP * (np.arange(len(place)) == n) for n in range(len(place))]
        slopes = np.stack([(np.log(predicted_s(values_of(each))) - logs) / _STEP for each in moved], axis=1)
        here = Fit(place, logs, slopes, measured, sources)
        place = _solved(here, np.ones(len(jobs), dtype=np.bool_))
    return Fit(place, np.log(predicted_s(values_of(place))), slopes, measured, sources)


def _solved(near: Fit, chosen: NDArray[np.bool_]) -> Array:
    """The place of the least errors of chosen jobs, with slopes as they are near another place."""
    count = len(near.place)
    own = near.sources[chosen]

    def errors(asked: Array) -> Array:
        place, shared = asked[:count], asked[count:]
        off = near.logs[chosen] + near.slopes[chosen] @ (place - near.place) - near.measured[chosen]
        return np.concatenate([(off - SPREADS["source"] * shared[own]) / SPREADS["own"], place, shared])

    start = np.concatenate([near.place, np.zeros(near.sources.max() + 1)])
    found: Any = least_squares(errors, start, loss="soft_l1", f_scale=_FAR)
    return np.asarray(found.x[:count])
