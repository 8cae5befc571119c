"""Calibrations: measured figures of kinds of devices and of links, and fitted models with their errors."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, final

from alpa_dejavu._util.dataclass_format import Rare, Stored, data_of
from alpa_dejavu._util.format_fields import Text, Words, at_most, listed, stated
from alpa_dejavu.calibration.measured_hosts import KINDS_OF_LINKS, HostLinks, MeasuredHostMemory
from alpa_dejavu.calibration.parts import CollectivesData, Fit, MeasuredLink, Spread, TracedRuntime, check_spread
from alpa_dejavu.calibration.text import json_text
from alpa_dejavu.costs.communication import AlphaBeta, CommunicationModel, Links, MeasuredAlphaBeta
from alpa_dejavu.costs.latency import AnalyticLatency, LatencyModel, MeasuredRoofline, ProductCurve
from alpa_dejavu.costs.memory_margin import MemoryResiduals
from alpa_dejavu.problem import Cluster, Device, Host

if TYPE_CHECKING:
    from alpa_dejavu.costs.communication.learned import FittedCollectives

    _Collectives: TypeAlias = FittedCollectives
else:
    _Collectives = object
VERSION = 1
"""The version of calibration files. A file of another version is refused."""
_OWN_SPREAD = 0.2
"""How far an operator is from the roofline of measured figures: the standard deviation of a logarithm."""
KIND_SPREAD = 0.3
"""The same of a kind of collective and the alpha-beta model; fits of links reckon with it, too."""
_STARTS = {"dispatch_s", "step_s"}
_Curve: TypeAlias = Annotated[ProductCurve, stated("an object with level, slope, bend, least_flop and most_flop")]
_Curves: TypeAlias = Annotated[Mapping[str, _Curve], stated("an object of curves by dtype"), at_most(100)]
_Fit: TypeAlias = Annotated[Fit, stated("an object that says how well a part was fitted")]
_KindOfLink: TypeAlias = Annotated[MeasuredLink, stated("an object with a kind of link and its figures")]


def _fitted(name: str) -> Stored:
    """Returns how a file has a fitted model of collectives, which is "within" or "across" hosts."""

    def read(state: Mapping[str, Any]) -> FittedCollectives:
        from alpa_dejavu.costs.communication.learned import FittedCollectives

        try:
            return FittedCollectives.of_state(state)
        except ValueError as error:
            raise ValueError(f"{name} is no fitted model: {error}") from error

    return Stored(CollectivesData, lambda model: model.state(), read)


_WITHIN, _ACROSS = map(_fitted, ("within", "across"))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Calibration:
    """A set of models and figures learned of some kinds of devices and links; what wasn't learned is left out."""

    name: Text
    origin: Annotated[str, stated("text: what was measured, and by whom", min_length=1)]
    date: Annotated[str, stated('a day such as "2024-05-31"', pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    fits: Rare[Annotated[tuple[_Fit, ...], listed("a list of fits")]] = ()
    # Sentences about what it doesn't know.
    missing: Rare[Annotated[tuple[Words, ...], listed("a list of sentences")]] = ()
    # By `Device.name` and dtype, how matrix products measured there differ from their operations at the device's rate.
    products: Rare[
        Annotated[
            Mapping[str, _Curves], stated("an object of curves by the names of devices and dtypes"), at_most(1000)
        ]
    ] = dataclasses.field(default_factory=dict)
    # Devices with measured figures by `Device.name`, which replace the cluster's.
    devices: Rare[
        Annotated[
            Mapping[str, Annotated[Device, stated("an object with the figures of a device")]],
            stated("an object of measured figures by the names of devices"),
            at_most(1000),
        ]
    ] = dataclasses.field(default_factory=dict)
    # By `Device.name`, the standard deviation of the logarithm of each measured figure, by the name of `Device`'s field
    # ("memory_bytes_per_s"; of a rate by dtype "flop_per_s[float32]").
    device_spread: Rare[Annotated[Mapping[str, Spread], stated("an object of spreads by the names of devices")]] = (
        dataclasses.field(default_factory=dict)
    )
    # links, host_links: measured kinds of links, which replace the cluster's, and links from host to host, which go
    # before these.
    links: Rare[Annotated[tuple[_KindOfLink, ...], listed("a list of measured links")]] = ()
    # The framework whose traced steps the figures are from.
    traced: Rare[Annotated[TracedRuntime | None, stated("an object with runtime and step_s")]] = None
    # Measured peaks of memory relative to those counted from tensors.
    memory: Rare[
        Annotated[
            MemoryResiduals | None,
            stated("an object with measured peaks of memory: log_ratios, num_groups, origin and framework"),
        ]
    ] = None
    host_links: Rare[
        Annotated[
            HostLinks | None,
            KINDS_OF_LINKS,
            stated("an object with hosts, kinds of links, and which of these goes from host to host"),
        ]
    ] = None
    # The measured memory of hosts by the `Device.name` of their devices; its rates replace the cluster's.
    host_memory: Rare[
        Annotated[
            Mapping[str, Annotated[MeasuredHostMemory, stated("an object with the figures of a host's memory")]],
            stated("an object of measured memory of hosts by the names of their devices"),
            at_most(1000),
        ]
    ] = dataclasses.field(default_factory=dict)
    # within, across: the models of collectives within a host, and of those that span hosts; the alpha-beta model
    # predicts collectives without one.
    within: Rare[Annotated[_Collectives | None, _WITHIN, stated("an object: fitted collectives within hosts")]] = None
    across: Rare[Annotated[_Collectives | None, _ACROSS, stated("an object: fitted collectives across hosts")]] = None

    def __post_init__(self) -> None:
        _check_date(self)
        for name, device in self.devices.items():
            if device.name != name:
                raise ValueError(f"calibration {self.name}: the device {device.name!r} is listed as {name!r}")
        for name, spread in self.device_spread.items():
            if name not in self.devices:
                raise ValueError(f"calibration {self.name}: device_spread is of {name!r}, whose figures aren't there")
            check_spread(f"device {name}", spread, Device)
        for name in sorted(set(self.products) - set(self.devices)):
            raise ValueError(f"calibration {self.name}: products are of {name!r}, which has no measured figures there")
        for name in sorted(set(self.host_memory) - set(self.devices)):
            raise ValueError(
                f"calibration {self.name}: host_memory is of hosts with {name!r}, but there are no figures of such "
                "devices; measure anew"
            )
        kinds = [link.kind for link in self.links]
        twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
        if twice is not None:
            raise ValueError(f"calibration {self.name}: the link {' - '.join(twice[0])} is there twice; keep one")
        if self.across is not None and self.within is None:
            raise ValueError(f"calibration {self.name}: has collectives across hosts, but none within; fit both")

    @property
    def text(self) -> str:
        """Returns the JSON text of the calibration's file; parts that it lacks are left out."""
        return json_text({"version": VERSION, "units": "SI", **data_of(self)})

    @cached_property
    def identity(self) -> str:
        """Returns the calibration's name, its date and a hash of its content: those with the same predict the same."""
        content = hashlib.sha256(self.text.encode()).hexdigest()[:12]
        return f"{self.name} of {self.date} ({content})"

    @property
    def device_names(self) -> tuple[str, ...]:
        """Returns the names of all devices that the calibration has figures of, sorted."""
        return tuple(sorted(self.devices))

    @property
    def knows_operators(self) -> bool:
        """Returns whether operators' seconds are known, beside the starts that `alpa-dejavu calibrate` measures."""
        starts_alone = all(set(spread) <= _STARTS for spread in self.device_spread.values())
        return bool(self.devices) and (bool(self.products) or not self.device_spread or not starts_alone)

    def latency(self) -> LatencyModel:
        """Returns the model that predicts the seconds of operators: the roofline, with measured spreads."""
        measured = MeasuredRoofline(self.device_spread, _OWN_SPREAD, self._spread_from, self.products)
        return measured if self.device_spread else AnalyticLatency()

    def communication(self) -> CommunicationModel:
        """Returns the learned model of collectives, else one by links if they are known, else alpha-beta."""
        spread = {measured.link: measured.spread for measured in self.links if measured.spread}
        rest: AlphaBeta | MeasuredAlphaBeta | Links = AlphaBeta()
        if self.host_links is not None:
            rest = Links()
        elif spread:
            rest = MeasuredAlphaBeta(spread, KIND_SPREAD, self._spread_from)
        if self.within is None:
            return rest
        from alpa_dejavu.costs.communication.learned import LearnedCommunication

        return LearnedCommunication(self.within, self.across, rest)

    @property
    def _spread_from(self) -> str:
        return f"the calibration {self.name}"

    def applied_to(self, cluster: Cluster) -> Cluster:
        """Returns the cluster with the measured figures; ValueError if a device or host is missing on either side, or a
        link is faster than the memory at its ends.
        """
        present = {host.device.name for host in cluster.hosts}
        # A calibration of links alone says nothing of devices.
        links_alone = self.host_links is not None and not self.device_names
        unknown = [] if links_alone else sorted(present - set(self.device_names))
        if unknown:
            raise ValueError(
                f"the cluster {cluster.name} has {unknown[0]!r}, but the calibration {self.name} knows "
                f"{', '.join(map(repr, self.device_names)) or 'no device'} only; give another calibration, or none"
            )
        measured = {*self.devices, *(end for link in self.links for end in link.devices)}
        absent = sorted(measured - present)
        if absent:
            raise ValueError(
                f"the calibration {self.name} was measured on {absent[0]!r}, which the cluster {cluster.name} "
                f"doesn't have (it has {', '.join(map(repr, sorted(present)))}); give the calibration of this cluster"
            )
        hosts = tuple(map(self._measured, cluster.hosts))
        measured_links = {link.kind: link.link for link in self.links}
        kinds = [host.device.name for host in hosts]
        links = tuple(
            tuple(measured_links.get((tuple(sorted((kinds[a], kinds[b]))), a == b), link) for b, link in enumerate(row))
            for a, row in enumerate(cluster.links)
        )
        applied = dataclasses.replace(cluster, hosts=hosts, links=links)
        if self.links:
            applied.check_rates()
        return applied if self.host_links is None else self.host_links.applied_to(applied, self.name)

    def _measured(self, host: Host) -> Host:
        """Returns the host with the measured figures of its devices and its memory, where there are some."""
        kind = host.device.name
        device = self.devices[kind].slower(host.slowdown) if kind in self.devices else host.device
        memory = self.host_memory[kind].applied_to(host.memory) if kind in self.host_memory else host.memory
        return dataclasses.replace(host, device=device, memory=memory)


def _check_date(calibration: Calibration) -> None:
    try:
        datetime.date.fromisoformat(calibration.date)
    except ValueError:
        raise ValueError(
            f"calibration {calibration.name}: date is {calibration.date!r}, but must be a day such as 2024-05-31"
        ) from None
