"""Probes of a host's memory, and the figures that follow from what they found."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

import numpy as np

from alpa_dejavu.calibration.bench import HOST_MEMORY, HostProbe, Probe, ProbePlace
from alpa_dejavu.calibration.measured_hosts import MeasuredHostMemory
from alpa_dejavu.calibration.measurements import Measurements
from alpa_dejavu.calibration.parts import Fit
from alpa_dejavu.problem import Cluster

_UPDATED_BYTES = 7.0
"""The bytes that Adam reads and writes for each of a parameter's, all float32: the parameter and two moments both ways,
and the gradient once."""
_USABLE = 0.9
"""The share of a host's memory, and of what is free on its drives, that training may use; the system needs some."""
_BESIDE_BYTES, _UPDATE_BYTES, _COPIED_BYTES, _FILE_BYTES = 1 << 27, 1 << 28, 1 << 24, (1 << 28, 1 << 26)
"""Parameters and files that caches don't hold; of copies also a smaller one."""
_LEAST_SPREAD, _ONE_SPREAD = 0.05, 0.15
_BOTH_WAYS = ("device_bytes_per_s", "shared_bytes_per_s")
_CPU = "cpu"


def host_probes(num_devices: int, folder: str) -> list[HostProbe]:
    """Returns the probes of a host's memory in order; files go to `folder`, or where it is empty to the system's."""
    of_all = [HostProbe("copies", _BESIDE_BYTES, num_devices)] if num_devices > 1 else []
    return [
        HostProbe("memory"),
        HostProbe("update", _UPDATE_BYTES),
        HostProbe("copies", _BESIDE_BYTES),
        *of_all,
        HostProbe("files", _FILE_BYTES[0], folder=folder),
        HostProbe("update", _BESIDE_BYTES),
        HostProbe("update beside copies", _BESIDE_BYTES),
        HostProbe("copies", _COPIED_BYTES),
        HostProbe("files", _FILE_BYTES[1], folder=folder),
    ]


def host_places(cluster: Cluster) -> dict[ProbePlace, int]:
    """Returns the places where hosts' memory is measured, by kind of device, and a host's number of devices."""
    places: dict[ProbePlace, int] = {}
    for host in cluster.hosts:
        places.setdefault(ProbePlace(HOST_MEMORY, host.device.name), host.num_devices)
    return places


def found_host_memory(
    cluster: Cluster, measurements: Measurements, folder: str
) -> tuple[dict[str, MeasuredHostMemory], list[Fit], list[str]]:
    """Returns the measured memory of hosts by their devices' names, its fits, and sentences on what was lacking; of
    files those in `folder` count.
    """
    memory: dict[str, MeasuredHostMemory] = {}
    fits: list[Fit] = []
    lacking: list[str] = []
    for place, num_devices in host_places(cluster).items():
        measured = measurements.at(place)
        figures = fit_host_memory(measured, num_devices, folder, stand_in=place.where == _CPU)
        if figures is None:
            continue
        memory[place.where] = figures
        fits.append(Fit(str(place), "alpa-dejavu calibrate: copies, Adam's update in JAX, files", len(measured)))
        if figures.stand_in:
            lacking.append(
                f"{place}: the devices are parts of the host's processors, so copies between two processes stood in, "
                "and plans don't go by these figures"
            )
        lacking += [
            f"{place}: {probe} wasn't measured, the time was over; go on with --resume"
            for probe in host_probes(num_devices, folder)
            if probe not in measured and probe not in measurements.failed_at(place)
        ]
    return memory, fits, lacking


def fit_host_memory(
    measured: Mapping[Probe, Mapping[str, float]], num_devices: int, folder: str, stand_in: bool
) -> MeasuredHostMemory | None:
    """Returns the figures of a host's memory that follow from its probes' seconds by `names`; None if none was
    measured.

    Each rate is that of the largest probe, of copies the geometric mean of both ways; its spread is that of all sizes,
    or of both ways. `stand_in`: the devices are parts of the host's processors.
    """
    probes = sorted((probe for probe in measured if isinstance(probe, HostProbe)), key=lambda probe: probe.num_bytes)
    if not probes:
        return None
    files = [probe for probe in probes if probe.name == "files" and probe.folder == folder]

    def rates_of(chosen: Iterable[HostProbe], *names: str) -> list[float]:
        """Returns the bytes per second of probes, the largest last."""
        return [probe.num_devices * probe.num_bytes / measured[probe][name] for probe in chosen for name in names]

    def copies(count: int) -> list[float]:
        of_count = (probe for probe in probes if probe.name == "copies" and probe.num_devices == count)
        return rates_of(of_count, "to_device_s", "to_host_s")[-2:]

    updates = rates_of((probe for probe in probes if probe.name == "update"), "update_s")
    rates = {
        "bytes_per_s": [_UPDATED_BYTES * rate for rate in updates],
        "device_bytes_per_s": copies(1),
        "shared_bytes_per_s": copies(num_devices),
        "read_bytes_per_s": rates_of(files, "read_s"),
        "write_bytes_per_s": rates_of(files, "write_s"),
    }
    figures = {
        name: statistics.geometric_mean(values) if name in _BOTH_WAYS else values[-1]
        for name, values in rates.items()
        if values
    }
    memory = HostProbe("memory")
    sizes = (("num_bytes", [memory] if memory in measured else []), ("free_bytes", files[-1:]))
    figures |= {name: _USABLE * measured[probe][name] for name, having in sizes for probe in having}
    slower: dict[str, float] = {}
    for probe in files[-1:]:
        took = measured[probe]
        slower |= {"reads": took["read_beside_s"] / took["read_s"], "writes": took["write_beside_s"] / took["write_s"]}
    for both in (probe for probe in probes if probe.name == "update beside copies"):
        update, copy = (measured.get(HostProbe(name, both.num_bytes)) for name in ("update", "copies"))
        if update and copy:
            took = measured[both]
            slower |= {"update": took["update_s"] / update["update_s"], "copies": took["copy_s"] / sum(copy.values())}
    return MeasuredHostMemory(
        **figures, folder=folder if files else "", stand_in=stand_in,
        spread={
            name: max(float(np.log(values).std()), _LEAST_SPREAD) if len(values) > 1 else _ONE_SPREAD
            for name, values in rates.items() if values
        },
        slowdown={name: max(value, 1.0) for name, value in slower.items()},
    )  # fmt: skip
