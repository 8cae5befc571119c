"""The figures that were measured: accuracies under each mask, and their mean, interval and 5th percentile."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["Point", "Resilience"]

_REACH_90 = 1.6448536269514722


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Point:
    """A model judged with a share of its parts faulty, under many masks.

    Attributes:
        fault: its name.
        group: the group of parts that was struck; empty: all.
        share, count: of the units, and how many these are.
        judged: what the judge says under each mask, shape (masks,).
        not_finite: the share of samples with an output that is NaN or infinite, under each mask, shape (masks,).
    """

    fault: str
    group: str
    share: float
    count: int
    judged: NDArray[np.float64]
    not_finite: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Returns the mean over masks."""
        return float(np.mean(self.judged))

    @property
    def low(self) -> float:
        """Returns the 5th percentile over masks."""
        return float(np.percentile(self.judged, 5))

    @property
    def interval(self) -> tuple[float, float]:
        """Returns the 90 % interval of the mean, as if means were normally distributed."""
        if len(self.judged) < 2:
            return -math.inf, math.inf
        reach = _REACH_90 * float(np.std(self.judged, ddof=1)) / math.sqrt(len(self.judged))
        return self.mean - reach, self.mean + reach


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Resilience:
    """The figures that `resilience` has measured.

    Attributes:
        kind: the word for the parts.
        groups: the names of their groups.
        units: how many there are.
        base: what the judge says of the model without faults.
        points: for each fault, group and share.
    """

    kind: str
    groups: tuple[str, ...]
    units: int
    base: float
    points: tuple[Point, ...]

    @property
    def faults(self) -> tuple[str, ...]:
        """Returns the names of the faults."""
        return tuple(dict.fromkeys(point.fault for point in self.points))

    def curve(self, fault: str, group: str = "") -> tuple[Point, ...]:
        """Returns the points of a fault in one group, or in all parts, by ascending share."""
        return tuple(point for point in self.points if (point.fault, point.group) == (fault, group))

    def data(self) -> dict[str, Any]:
        """Returns all figures as plain data for JSON."""
        points = [
            {"fault": p.fault, "group": p.group, "share": p.share, "count": p.count, "mean": p.mean, "low": p.low,
             "interval": [each if math.isfinite(each) else None for each in p.interval],
             "not_finite": float(np.mean(p.not_finite)), "judged": p.judged.tolist()}
            for p in self.points
        ]  # fmt: skip
        return {"version": 1, "parts": self.kind, "units": self.units, "base": self.base, "points": points}
