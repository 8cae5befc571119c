"""Measured peaks of memory beside what a fit that had left their group out said of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import final

import numpy as np
import numpy.typing as npt

from alpa_dejavu.calibration import Fit
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from fitting import Fitted
from trials._trial_set import Predicted


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Peaks:
    """Of plans that ran under one framework.

    Attributes:
        measured_bytes: on the fullest device of each plan.
        predicted: of each, by a count that learned the framework's own factors from the other groups.
        groups: how many there are.
        framework: that ran.
        factors: of it, fitted to all peaks: they are the framework's, so they stay out of the residuals.
    """

    measured_bytes: npt.NDArray[np.float64]
    predicted: Predicted
    groups: int
    framework: str
    factors: Mapping[str, float]

    @classmethod
    def of(
        cls,
        measured_bytes: npt.NDArray[np.float64],
        predicted: Predicted,
        groups: npt.NDArray[np.object_],
        framework: str,
        fitted: Fitted,
    ) -> Peaks:
        """Those that were measured; rows without a peak are left out.

        Args:
            measured_bytes: of each row; NaN where it wasn't measured.
            predicted: of each row, without its group.
            groups: of each row.
            framework: that ran.
            fitted: on all rows.
        """
        known = np.isfinite(measured_bytes)
        kept = Predicted(predicted.mean[known], predicted.lower[known], predicted.upper[known])
        return cls(measured_bytes[known], kept, len(set(groups[known])), framework, fitted.values)

    @property
    def note(self) -> str:
        """What they don't say, for a calibration."""
        return (
            f"memory: peaks were measured under {self.framework} alone, around a count that learned what that keeps "
            "besides (a context, buffers); what Alpa keeps besides isn't known"
        )

    def residuals(self, origin: str) -> MemoryResiduals:
        """Logarithms of measured over predicted bytes."""
        ratios = np.log(self.measured_bytes / self.predicted.mean)
        return MemoryResiduals({"peak": tuple(ratios.tolist())}, self.groups, origin, self.framework)

    def fit_of(self, origin: str, left_out: str) -> Fit:
        """How well they are predicted, and the framework's factors."""
        true, of = self.measured_bytes, self.predicted
        off = np.abs(of.mean / true - 1)
        errors = {
            "mape": float(off.mean()),
            "median_ape": float(np.median(off)),
            "coverage_90": float(((of.lower <= true) & (true <= of.upper)).mean()),
        }
        return Fit(f"peaks of memory of {self.framework}", origin, len(true), left_out, errors, dict(self.factors))
