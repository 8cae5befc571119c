"""Probes of a host's memory, and the figures that follow from what they found."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from alpa_dejavu.calibration._calibration import Fit
from alpa_dejavu.calibration.bench import HOST_MEMORY, HostProbe, Probe, ProbePlace
from alpa_dejavu.calibration.measured_hosts import MeasuredHostMemory
from alpa_dejavu.calibration.measurements import Measurements
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
Found: TypeAlias = Mapping[Probe, Mapping[str, float]]


def host_probes(num_devices: int, folder: str) -> list[HostProbe]:
    """Returns the probes of the memory of a host with so many devices, in the order in which they are measured; files
    are written to `folder`, or where it is empty to the system's for temporary files.
    """
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
    """Returns the places where the memory of hosts is measured, one for each kind of device, and how many devices the
    first host of each has.
    """
    places: dict[ProbePlace, int] = {}
    for host in cluster.hosts:
        places.setdefault(ProbePlace(HOST_MEMORY, host.device.name), host.num_devices)
    return places


def found_host_memory(
    cluster: Cluster, measurements: Measurements, folder: str
) -> tuple[dict[str, MeasuredHostMemory], list[Fit], list[str]]:
    """Returns the measured memory of hosts by the names of their devices, what it was fitted to, and sentences about
    what stood in for something, or wasn't measured; of files those in `folder` count.
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


def fit_host_memory(measured: Found, num_devices: int, folder: str, stand_in: bool) -> MeasuredHostMemory | None:
    """Returns the figures of a host's memory that follow from what its probes found, by the probes' `names`; None if
    none was measured.

    Each rate is that of the largest probe, of copies the geometric mean of both ways. Its spread is that of all sizes
    of updates and files, or of both ways. `stand_in`: the devices are parts of the host's processors.
    """
    probes = [probe for probe in measured if isinstance(probe, HostProbe)]
    if not probes:
        return None
    updates = _largest_last(probe for probe in probes if probe.name == "update")
    files = _largest_last(probe for probe in probes if probe.name == "files" and probe.folder == folder)
    rates = {
        "bytes_per_s": [_UPDATED_BYTES * probe.num_bytes / measured[probe]["update_s"] for probe in updates],
        **{
            name: [
                probe.num_devices * probe.num_bytes / seconds
                for probe in _largest_last(probe for probe in probes if probe.name == "copies")
                if probe.num_devices == count
                for seconds in measured[probe].values()
            ][-2:]
            for name, count in (("device_bytes_per_s", 1), ("shared_bytes_per_s", num_devices))
        },
        "read_bytes_per_s": [probe.num_bytes / measured[probe]["read_s"] for probe in files],
        "write_bytes_per_s": [probe.num_bytes / measured[probe]["write_s"] for probe in files],
    }
    figures = {name: values[-1] for name, values in rates.items() if values}
    figures |= {name: statistics.geometric_mean(rates[name]) for name in _BOTH_WAYS if rates[name]}
    memory = HostProbe("memory")
    sizes = (("num_bytes", [memory] if memory in measured else []), ("free_bytes", files[-1:]))
    figures |= {name: _USABLE * measured[probe][name] for name, having in sizes for probe in having}
    return MeasuredHostMemory(
        **figures, folder=folder if files else "", stand_in=stand_in,
        spread={name: _spread(values) for name, values in rates.items() if values},
        slowdown={name: max(value, 1.0) for name, value in _slowdown(measured, files).items()},
    )  # fmt: skip


def _largest_last(probes: Iterable[HostProbe]) -> list[HostProbe]:
    return sorted(probes, key=lambda probe: probe.num_bytes)


def _spread(values: Sequence[float]) -> float:
    return max(float(np.log(values).std()), _LEAST_SPREAD) if len(values) > 1 else _ONE_SPREAD


def _slowdown(measured: Found, files: Sequence[HostProbe]) -> dict[str, float]:
    """Returns how many times as long as alone each of two takes while the other goes on."""
    slower: dict[str, float] = {}
    for probe in files[-1:]:
        took = measured[probe]
        slower |= {"reads": took["read_beside_s"] / took["read_s"], "writes": took["write_beside_s"] / took["write_s"]}
    for both, took in measured.items():
        if isinstance(both, HostProbe) and both.name == "update beside copies":
            alone = {name: measured.get(HostProbe(name, both.num_bytes)) for name in ("update", "copies")}
            if alone["update"] and alone["copies"]:
                slower["update"] = took["update_s"] / alone["update"]["update_s"]
                slower["copies"] = took["copy_s"] / sum(alone["copies"].values())
    return slower
