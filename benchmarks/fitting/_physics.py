"""Physics with a few parameters, and what each program adds to it of its own: fitted together, with their covariance.

A physical model gives the seconds of a row from parameters that mean something (a device's rate, a link's, a launch).
What it leaves is not noise: one and the same program (a layer of one width, divided in one way, at one micro-batch) is
off by the same share wherever it runs. So each program has a deviation, in log space, drawn from a Gaussian process
over its features: programs alike are off alike, and one that was never seen has the prior's full spread.

References:
    Gelman et al., Bayesian Data Analysis, 3rd edition, chapters 4.1 (normal approximation) and 17 (robust inference).
    Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapter 2.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = Mapping[str, Array]
"""Columns of the same length; some have a second axis, of stages."""


@final
@dataclasses.dataclass(frozen=True)
class Parameter:
    """One positive number of a physical model, with what is believed of it before any measurement.

    Attributes:
        name: what it is, with its unit.
        start: the median of its prior.
        spread: one standard deviation of its logarithm.
    """

    name: str
    start: float
    spread: float


@final
@dataclasses.dataclass(frozen=True)
class Deviation:
    """A kind of deviation from a physical model, which each program (such as a layer of one width, divided in one way)
    has of its own: a Gaussian process in log space.

    Attributes:
        name: what deviates.
        lengths: for each feature column of a program, the distance over which deviations are alike (in its unit).
        shared: standard deviation of the part that programs near each other have in common.
        own: standard deviation of the part that each program has for itself.
    """

    name: str
    lengths: Mapping[str, float]
    shared: float
    own: float

    def programs(self, rows: Rows) -> Array:
        """Returns the F features of each row's program, each divided by its length scale, shape (N, F)."""
        return np.stack([rows[name] / length for name, length in self.lengths.items()], axis=1)

    def covariance(self, left: Array, right: Array) -> Array:
        """Returns the prior covariance between the deviations of two lists of programs, given by their features, shape
        (L, R).
        """
        squares = ((left[:, None, :] - right[None, :, :]) ** 2).sum(axis=2)
        return self.shared**2 * np.exp(-0.5 * squares) + self.own**2 * (squares < 1e-12)


class Physics(abc.ABC):
    """A physical model that predicts seconds or bytes from columns of features, by parameters and deviations that are
    fitted.
    """

    parameters: tuple[Parameter, ...]
    deviations: tuple[Deviation, ...]

    @abc.abstractmethod
    def log_value(self, values: Mapping[str, float], deviations: Mapping[str, Array], rows: Rows) -> Array:
        """Returns the logarithm of the seconds or bytes that the model predicts for each of N rows, shape (N,).

        Args:
            values: the values of the parameters by name, in their units.
            deviations: for each kind of deviation by name, the deviation of each row's logarithm, shape (N,).
            rows: the columns that this model takes.
        """
