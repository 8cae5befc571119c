"""Seconds that operators take on a device: models of one method, chosen by name."""

from __future__ import annotations

from alpa_dejavu._named import resolve
from alpa_dejavu.latency._analytic import AnalyticLatency
from alpa_dejavu.latency._base import Latency, LatencyModel
from alpa_dejavu.latency._measure import measured_cpu
from alpa_dejavu.latency._measured_roofline import MeasuredRoofline

__all__ = ["AnalyticLatency", "Latency", "LatencyModel", "MeasuredRoofline", "latency_model", "measured_cpu"]


def latency_model(choice: str | LatencyModel) -> LatencyModel:
    """The model of a name ("analytic"; "auto" is the default, the same), or the given one.

    >>> latency_model("analytic")
    AnalyticLatency()
    """
    known = {"auto": AnalyticLatency, "analytic": AnalyticLatency}
    return resolve("latency model", choice, known, LatencyModel)  # type: ignore[type-abstract]
