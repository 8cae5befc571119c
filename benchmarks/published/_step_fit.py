"""The figures of training steps, fitted to published steps: of each source what its steps are off in common is told
from what all have in common, and no source teaches a figure alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from published._jobs import Job
from published._step_figures import FIGURES, SPREADS, Values

__all__ = ["Fit", "fitted", "values_of"]

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
        jobs: the jobs.
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
