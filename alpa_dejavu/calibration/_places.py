"""The places where a cluster is measured, and the probes that can be measured there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu.calibration._fit_devices import DeviceModel
from alpa_dejavu.calibration._fit_host_memory import host_places, host_probes
from alpa_dejavu.calibration._fit_links import LinkModel, predicted_s
from alpa_dejavu.calibration._log_fit import Array
from alpa_dejavu.calibration.bench import BETWEEN, WITHIN, Collective, Pipeline, Place, Probe
from alpa_dejavu.calibration.measurements import Measurements
from alpa_dejavu.calibration.operators import Program, programs, stage_programs
from alpa_dejavu.costs.communication import MEASURED
from alpa_dejavu.problem import Cluster, Device, Link

__all__ = ["Part", "devices_of", "parts_of"]

_SENT_BYTES = (1 << 12, 1 << 18, 1 << 22)
_COLLECTIVE_BYTES = (1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 25, 1 << 28)
_LONGEST_S = 0.02


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A place of a cluster (a kind of device or of link, or a host's memory), with the probes that can be measured
    there and the model that is fitted to them.

    Attributes:
        place: the place.
        probes: all programs, collectives, pipelines or probes of memory that can be measured there.
        devices: the model of programs on a kind of device; None at other places.
        links: the model of collectives over a kind of link; None at other places. Pipelines, stages and a host's
            memory have no model: all of the few are measured.
    """

    place: Place
    probes: Sequence[Probe]
    devices: DeviceModel | None = None
    links: LinkModel | None = None

    def unsure(self, measurements: Measurements) -> Array:
        """Returns the standard deviation of the logarithm of the seconds that a fit to the measurements so far predicts
        for each of the place's N probes, shape (N,).
        """
        model = self.devices or self.links
        return np.ones(len(self.probes)) if model is None else model.fit(self.seconds(measurements)).unsure

    def seconds(self, measurements: Measurements) -> dict[int, float]:
        """Returns the seconds of those probes of this place that were measured, by the index of the probe."""
        found = measurements.at(self.place)
        return {n: found[probe]["run_s"] for n, probe in enumerate(self.probes) if probe in found}


def parts_of(cluster: Cluster, measurements: Measurements, folder: str) -> list[Part]:
    """Returns the places of a cluster (kinds of links and of devices) with the probes to measure there, in the order in
    which they are measured; programs and collectives measured before are always among them.

    Args:
        cluster: the cluster.
        measurements: what was measured before.
        folder: the folder of a host in which files are written and read; empty: the system's for temporary files.
    """
    return [
        *_links(cluster, measurements), *_host_memory(cluster, folder), *_programs(cluster, measurements),
        *_stages(cluster),
    ]  # fmt: skip


def devices_of(cluster: Cluster) -> dict[str, Device]:
    """Returns the cluster's devices, one of each kind, by their names."""
    return {host.device.name: host.device for host in cluster.hosts}


def _links(cluster: Cluster, measurements: Measurements) -> list[Part]:
    devices = cluster.hosts[0].num_devices
    links = ([WITHIN] if devices > 1 else []) + ([BETWEEN] if len(cluster.hosts) > 1 else [])
    parts = [Part(Place("pipelines", where), [Pipeline(size) for size in _SENT_BYTES]) for where in links]
    for where in links:
        place, prior = Place("collectives", where), cluster.links[0][0 if where == WITHIN else 1]
        listed = _collectives(prior, devices, where == BETWEEN)
        before = [one for one in measurements.at(place) if isinstance(one, Collective)]
        probes = list(dict.fromkeys((*listed, *before)))
        parts.append(Part(place, probes, links=LinkModel(prior, probes, devices)))
    return parts


def _host_memory(cluster: Cluster, folder: str) -> list[Part]:
    return [Part(place, host_probes(num_devices, folder)) for place, num_devices in host_places(cluster).items()]


def _programs(cluster: Cluster, measurements: Measurements) -> list[Part]:
    parts = []
    for name, device in devices_of(cluster).items():
        place = Place("programs", name)
        before = [one for one in measurements.at(place) if isinstance(one, Program)]
        probes = list(dict.fromkeys((*programs(device), *before)))
        parts.append(Part(place, probes, devices=DeviceModel(device, probes)))
    return parts


def _stages(cluster: Cluster) -> list[Part]:
    """Returns the stages of pipelines by which fitted figures are judged, on the first kind of device."""
    device = cluster.hosts[0].device
    return [Part(Place("stages", device.name), stage_programs(device))]


def _collectives(prior: Link, devices: int, across: bool) -> list[Collective]:
    """Returns collectives of all devices and of pairs, without sizes too long for the link by what is known of it."""
    whole = 2 * devices if across else devices
    groups = sorted({(whole, 1), (2, whole // 2)}) if whole % 2 == 0 else [(whole, 1)]
    listed = [
        Collective(name, size, members, concurrent, across)
        for members, concurrent in groups
        for name in MEASURED
        for size in _COLLECTIVE_BYTES
    ]
    return [one for one in listed if predicted_s(one, prior, devices) <= _LONGEST_S]
