"""Runtime profiles: what a training framework adds to the work of a plan, in a few figures that each mean something.

The costs of stages are those of operators and messages. A framework launches operators one by one or as compiled
programs, fuses what is between products well or not, and communicates while it computes or not: its profile says so.
How it runs a transformer, layer by layer, is in `alpa_dejavu.sharding.transformers`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util import units
from alpa_dejavu._util.json_text import strict_json
from alpa_dejavu.clusters.gpus import gpu_of
from alpa_dejavu.costs.communication import CommunicationModel, communication_model
from alpa_dejavu.costs.latency import Latency, LatencyModel, latency_model
from alpa_dejavu.costs.overlap import NO_OVERLAP, OVERLAP_TEXT, Overlap, named_overlap
from alpa_dejavu.problem import Device, Host, Operators

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_Seconds = TypeVar("_Seconds", float, NDArray[np.float64])

BOUNDS = {
    "launch_s": (0.0, 1e-3),
    "elementwise": (0.3, 10.0),
    "collectives": (0.1, 10.0),
    "sends": (0.1, 10.0),
    "step_s": (0.0, 10.0),
    "own_bytes": (0.0, 1e11),
    "spread": (0.0, 1.0),
}
"""The figures of a profile, each with the least and the greatest value that it may have."""
_ALLOCATED = 0.9
"""The share of a GPU's memory that JAX allocates by default, which machine files have. One that has less says what is
really there, for any training framework."""
_SOFTNESS = 4.0
FILE = Path(__file__).with_name("runtimes.json")
"""The bundled profiles, each with its origin."""


@final
@dataclasses.dataclass(frozen=True)
class RuntimeProfile:
    """A profile of a training framework: what it adds to the predicted work of a plan, on any device and any cluster.

    Attributes:
        name: the framework's name.
        launch_s: seconds in which the framework's host program launches one operator. A layer takes as long as its
            launches or as its device computes, whichever is longer, and up to a fifth more where they are alike.
        elementwise: factor on the seconds of operators between products: 1 where each is one kernel that reads and
            writes its tensors once.
        collectives: factor on the seconds of the collectives of activations.
        sends: factor on the seconds of transfers from stage to stage.
        step_s: seconds that a step takes besides: data, logging, the optimizer's launches.
        own_bytes: bytes of each device that the framework's libraries take (a context, NCCL's buffers, what its
            allocator can't use), of a GPU whose data sheet is known; None: a device's `memory_bytes` leave that out
            already, as for Alpa.
        spread: how far off steps of the framework may be as a whole, from one source of measurements to another: the
            standard deviation of the logarithm of measured over predicted seconds; None: it isn't known.
        compiled: whether starting a compiled computation, and a step, takes what the device's figures say, as under
            Alpa.
        overlap: what devices do at the same time.

    Raises ValueError for a figure outside of its `BOUNDS`.
    """

    name: str
    launch_s: float = 0.0
    elementwise: float = 1.0
    collectives: float = 1.0
    sends: float = 1.0
    step_s: float = 0.0
    own_bytes: float | None = None
    spread: float | None = None
    compiled: bool = True
    overlap: Overlap = NO_OVERLAP

    def __post_init__(self) -> None:
        for figure, (least, most) in BOUNDS.items():
            value = getattr(self, figure)
            if value is not None and not least <= value <= most:
                raise ValueError(
                    f"{figure} is {value!r}, but must be from {least:g} to {most:g}; mend the runtime profile "
                    f"{self.name!r}"
                )

    def computed_s(self, device_s: _Seconds, launches: _Seconds) -> _Seconds:
        """Returns the seconds of a layer's pass, or an array of them, given its operators' on the device and their
        launches.
        """
        if self.launch_s == 0:
            return device_s
        return (device_s**_SOFTNESS + (self.launch_s * launches) ** _SOFTNESS) ** (1 / _SOFTNESS)

    def sent_s(self, predicted_s: Float[np.ndarray, " sizes"], phase: str) -> Float[np.ndarray, " sizes"]:
        """Returns the seconds of collectives in a phase: "forward", "backward" or "step"."""
        return predicted_s if phase == "step" else predicted_s * self.collectives

    def latency(
        self, predicted: Latency, operators: Operators, ends: Sequence[int] | Int[np.ndarray, " layers"] | None = None
    ) -> Latency:
        """Returns the latency of a layer's operators under this runtime; where those of several layers are joined,
        `ends` says where each layer's end.
        """
        if (self.elementwise, self.launch_s) == (1.0, 0.0) or not len(operators):
            return predicted
        lengths = np.diff([len(operators)] if ends is None else ends, prepend=0)
        of_layers = np.repeat(np.arange(len(lengths)), lengths)
        factor = np.where(operators.is_product, 1.0, self.elementwise)

        def added(values: Float[np.ndarray, " operators"]) -> Float[np.ndarray, " layers"]:
            return np.asarray(np.bincount(of_layers, values, minlength=len(lengths)), dtype=np.float64)

        device_s = added(predicted.mean_s * factor)
        computed_s = self.computed_s(device_s, added(launches(operators)))
        longer = np.divide(computed_s, device_s, out=np.ones_like(device_s), where=device_s > 0)
        factor = factor * longer[of_layers]
        return Latency(predicted.mean_s * factor, predicted.spread_s * factor)

    def hosts(self, hosts: Iterable[Host]) -> list[Host]:
        """Returns hosts with as much memory of each device as the framework leaves to a plan."""
        if self.own_bytes is None:
            return list(hosts)
        return [dataclasses.replace(host, device=self._left_of(host.device)) for host in hosts]

    def _left_of(self, device: Device) -> Device:
        gpu = gpu_of(device.name)
        if gpu is None:
            return device
        left = gpu.memory_bytes - (self.own_bytes or 0.0)
        if left <= 0:
            raise ValueError(
                f"own_bytes is {units.exact_bytes(self.own_bytes or 0.0)}, but must be less than {device.name} has, "
                f"{units.exact_bytes(gpu.memory_bytes)}; mend the runtime profile {self.name!r}"
            )
        if device.memory_bytes < _ALLOCATED * gpu.memory_bytes:
            left = min(left, device.memory_bytes)
        return dataclasses.replace(device, memory_bytes=left)

    def dispatch_s(self, device: Device) -> float:
        """Returns the seconds that starting a micro-batch's pass on a device takes."""
        return device.dispatch_s if self.compiled else 0.0

    def started_step_s(self, device: Device) -> float:
        """Returns the seconds that a step takes on a device besides its work."""
        return self.step_s + (device.step_s if self.compiled else 0.0)


def launches(operators: Operators) -> Float[np.ndarray, " operators"]:
    """Returns how often each operator is launched: as often as it runs if it writes a result to memory."""
    return operators.count * (operators.written_bytes > 0)


ALPA = RuntimeProfile("alpa")
"""The default: compiled programs, whose start is a figure of each device."""


@functools.cache
def _bundled() -> dict[str, RuntimeProfile]:
    bundled: dict[str, Any] = strict_json(FILE.read_text(encoding="utf-8"))["runtimes"]
    profiles = {ALPA.name: ALPA}
    for name, entry in bundled.items():
        overlap = named_overlap(entry["overlap"])
        profiles[name] = RuntimeProfile(name, **entry["figures"], compiled=entry["compiled"], overlap=overlap)
    return profiles


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
    name, _, text = choice.partition("+")
    if name not in _bundled() or (text and OVERLAP_TEXT.fullmatch(text) is None):
        names = ", ".join(map(repr, _bundled()))
        raise ValueError(
            f"runtime is {choice!r}, but must be one of {names}, or one of them with '+streams'; or give a "
            "RuntimeProfile of your own"
        )
    profile = _bundled()[name]
    return with_overlap(profile, text) if text else profile


def with_overlap(profile: RuntimeProfile, overlap: str | Overlap) -> RuntimeProfile:
    """Returns a runtime profile whose devices do other things at the same time; its name says so."""
    chosen, name = named_overlap(overlap), profile.name.partition("+")[0]
    usual = _bundled()[name].overlap if name in _bundled() else NO_OVERLAP
    text = "" if chosen == usual else f"+{chosen.text}"
    return dataclasses.replace(profile, name=name + text, overlap=chosen)


@final
@dataclasses.dataclass(frozen=True)
class CostModels:
    """A latency model of operators, a communication model of collectives and sends, and a runtime profile, which says
    what the training framework adds to both and what it does at the same time.
    """

    latency: LatencyModel
    communication: CommunicationModel
    runtime: RuntimeProfile = ALPA

    @classmethod
    def named(
        cls,
        latency: str | LatencyModel = "analytic",
        communication: str | CommunicationModel = "alpha-beta",
        runtime: str | RuntimeProfile = ALPA,
    ) -> CostModels:
        """Returns the models of these names; a model in place of a name is taken as it is. ValueError for an unknown
        name, TypeError for what is neither.
        """
        return cls(latency_model(latency), communication_model(communication), runtime_profile(runtime))

    @property
    def names(self) -> tuple[str, str]:
        """Returns the class names of both models, by which files record which models their predictions come from."""
        return type(self.latency).__name__, type(self.communication).__name__
