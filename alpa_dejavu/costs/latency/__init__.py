"""The models of latency, which predict the seconds of operators on a device; each is chosen by name.

In: operators, with their kind, shapes and operations, and a device.
Out: a `Latency`, the mean seconds of each operator and their spread.
"""

from __future__ import annotations

from alpa_dejavu._util.by_name import name_of, resolve
from alpa_dejavu.costs.latency._base import Latency, LatencyModel
from alpa_dejavu.costs.latency._kernels import KernelLatency
from alpa_dejavu.costs.latency._profiled import LayerTimes, ProfiledLayers, profiled_pass
from alpa_dejavu.costs.latency._roofline import AnalyticLatency, MeasuredRoofline, ProductCurve

__all__ = [
    "AnalyticLatency",
    "KernelLatency",
    "Latency",
    "LatencyModel",
    "LayerTimes",
    "MeasuredRoofline",
    "ProductCurve",
    "ProfiledLayers",
    "latency_model",
    "latency_name",
    "latency_names",
    "profiled_pass",
]

_KNOWN: dict[str, type[LatencyModel]] = {"auto": AnalyticLatency, "analytic": AnalyticLatency, "kernels": KernelLatency}


def latency_model(choice: str | LatencyModel) -> LatencyModel:
    """Returns the latency model of a name ("analytic", the roofline; "kernels", models of GPU kernels; "auto", the
    roofline where nothing else is chosen), or the given one.

    >>> latency_model("analytic")
    AnalyticLatency()
    """
    return resolve("latency model", choice, _KNOWN, LatencyModel)  # type: ignore[type-abstract]


def latency_names() -> tuple[str, ...]:
    """Returns the names of the latency models, "auto" first."""
    return tuple(_KNOWN)


def latency_name(model: LatencyModel) -> str:
    """Returns the name by which `latency_model` finds a model, or the name of its class if there is none.

    >>> latency_name(AnalyticLatency())
    'analytic'
    """
    return name_of(model, _KNOWN)
