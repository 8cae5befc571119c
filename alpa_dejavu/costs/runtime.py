"""Runtime profiles: what a training framework adds to the work of a plan, in at most eight fitted figures.

The costs of stages are those of operators and messages. A framework launches the operators one by one or as compiled
programs, reaches more or less of the links' rates, and overlaps the exchange of gradients or not: its profile says so.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu.costs.latency import Latency
from alpa_dejavu.costs.overlap import NO_OVERLAP, PUBLISHED, Overlap, named_overlap
from alpa_dejavu.problem import Operators

__all__ = ["ALPA", "BOUNDS", "FILE", "RuntimeProfile", "launches", "runtime_names", "runtime_profile", "with_overlap"]

_Seconds = TypeVar("_Seconds", float, NDArray[np.float64])

BOUNDS = {
    "operators": (0.3, 3.0),
    "launch_s": (0.0, 1e-3),
    "collectives": (0.1, 10.0),
    "collective_s": (0.0, 1e-2),
    "synchronisation": (0.0, 10.0),
    "sends": (0.1, 10.0),
    "send_s": (0.0, 0.1),
    "step_s": (0.0, 1.0),
}
"""The figures of a profile, each with the least and the greatest value that it may have."""
_SOFTNESS = 4.0
_STREAMS = re.compile("streams(?::([0-9.]+):([0-9.]+))?")
"""What follows a runtime's name and a plus sign: the overlap, and slowdowns of both streams other than published."""
FILE = Path(__file__).with_name("runtimes.json")
"""The bundled profiles, each with its origin and its error on what was left out of the fit."""


@final
@dataclasses.dataclass(frozen=True)
class RuntimeProfile:
    """A profile of a training framework: what it adds to the predicted work of a plan, on any device and any cluster.

    Attributes:
        name: the framework's name.
        operators: factor on the seconds that devices compute.
        launch_s: seconds in which the framework's host program launches one operator. A layer takes as long as its
            launches or as its device computes, whichever is longer, and up to a fifth more where they are alike.
        collectives: factor on the seconds of the collectives of each micro-batch.
        collective_s: seconds that each of these collectives takes besides.
        synchronisation: factor on the seconds of the gradients' exchange: above 1 where the links' rate isn't reached,
            below 1 where the exchange is hidden behind computing.
        sends: factor on the seconds of transfers from stage to stage.
        send_s: seconds that each transfer takes besides.
        step_s: seconds that a step takes besides.
        overlap: what devices do at the same time; not one of the fitted figures.

    Raises ValueError for a figure outside of its `BOUNDS`.
    """

    name: str
    operators: float = 1.0
    launch_s: float = 0.0
    collectives: float = 1.0
    collective_s: float = 0.0
    synchronisation: float = 1.0
    sends: float = 1.0
    send_s: float = 0.0
    step_s: float = 0.0
    overlap: Overlap = NO_OVERLAP

    def __post_init__(self) -> None:
        for figure, (least, most) in BOUNDS.items():
            value = getattr(self, figure)
            if not least <= value <= most:
                raise ValueError(
                    f"{figure} is {value!r}, but must be from {least:g} to {most:g}; mend the runtime profile "
                    f"{self.name!r}"
                )

    def computed_s(self, device_s: _Seconds, launches: _Seconds) -> _Seconds:
        """Returns the seconds that a layer's pass takes, or an array of them.

        Args:
            device_s: predicted seconds of its operators on the device.
            launches: how many operators are launched.
        """
        device_s = self.operators * device_s
        if self.launch_s == 0:
            return device_s
        return (device_s**_SOFTNESS + (self.launch_s * launches) ** _SOFTNESS) ** (1 / _SOFTNESS)

    def sent_s(self, predicted_s: NDArray[np.float64], phase: str) -> NDArray[np.float64]:
        """Returns the seconds of collectives in a phase ("forward", "backward" or "step"); what takes no time, among
        devices alone, takes none.

        Profiles whose factor on synchronising is below 1 were fitted to steps in which it hides behind computing. With
        streams that is simulated, and nothing is hidden twice.
        """
        if phase == "step":
            return predicted_s * (max(self.synchronisation, 1.0) if self.overlap.streams else self.synchronisation)
        return predicted_s * self.collectives + np.where(predicted_s > 0, self.collective_s, 0.0)

    def latency(self, predicted: Latency, operators: Operators) -> Latency:
        """Returns the latency of a layer's operators under this runtime: all are longer by the same factor."""
        total_s = predicted.total_s
        if total_s == 0 or (self.operators, self.launch_s) == (1.0, 0.0):
            return predicted
        factor = self.computed_s(total_s, launches(operators)) / total_s
        return Latency(predicted.mean_s * factor, predicted.spread_s * factor)


def launches(operators: Operators) -> float:
    """Returns how many operators are launched one by one: those that write a result to memory, each as often as it
    runs.
    """
    return float(operators.count[operators.written_bytes > 0].sum())


ALPA = RuntimeProfile("alpa")
"""The default: compiled programs, whose start is a figure of each device."""


@functools.cache
def _bundled() -> dict[str, RuntimeProfile]:
    known: dict[str, Any] = strict_json(FILE.read_text(encoding="utf-8"))["runtimes"]
    fitted = {name: RuntimeProfile(name, **entry["figures"]) for name, entry in known.items()}
    return {ALPA.name: ALPA, **fitted}


def runtime_names() -> tuple[str, ...]:
    """Returns the names of the known runtime profiles, the default first."""
    return tuple(_bundled())


def runtime_profile(choice: str | RuntimeProfile, overlap: str | Overlap | None = None) -> RuntimeProfile:
    """Returns the runtime profile of a name, or the given one; "alpa+streams" and the like are those of a runtime whose
    devices communicate while they compute. `overlap` takes the place of what it says of that; None: nothing does.

    Raises:
        ValueError: there is no profile of that name, or no overlap.

    >>> runtime_profile("alpa").launch_s, runtime_profile("alpa+streams").overlap.kind
    (0.0, 'streams')
    >>> runtime_profile("alpa+streams:1.1:1.25").overlap.transfer_slowdown
    1.25
    """
    profile = choice if isinstance(choice, RuntimeProfile) else _named(choice)
    return profile if overlap is None else with_overlap(profile, overlap)


def _named(choice: str) -> RuntimeProfile:
    name, _, streams = choice.partition("+")
    overlap = _STREAMS.fullmatch(streams)
    if name not in _bundled() or (streams and overlap is None):
        known = ", ".join(map(repr, _bundled()))
        raise ValueError(
            f"runtime is {choice!r}, but must be one of {known}, or one of them with '+streams'; or give a "
            "RuntimeProfile of your own"
        )
    if overlap is None:
        return _bundled()[name]
    slower = [float(factor) for factor in overlap.groups() if factor is not None]
    return with_overlap(_bundled()[name], Overlap(PUBLISHED.kind, *slower) if slower else PUBLISHED)


def with_overlap(profile: RuntimeProfile, overlap: str | Overlap) -> RuntimeProfile:
    """Returns a runtime profile whose devices do other things at the same time; its name says so.

    Raises:
        ValueError: there is no overlap of that name.
    """
    chosen = named_overlap(overlap)
    said = f"+{chosen.kind}" if chosen.streams else ""
    if said and chosen != PUBLISHED:
        said += f":{chosen.compute_slowdown!r}:{chosen.transfer_slowdown!r}"
    return dataclasses.replace(profile, name=profile.name.partition("+")[0] + said, overlap=chosen)
