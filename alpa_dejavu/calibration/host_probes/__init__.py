"""The measuring of a host's memory on that host: copies to its devices and back, updates on its processors, files.

In: a `HostProbe`, and the device as JAX has it. Out: its seconds and bytes by name. Nothing of Ray or Alpa is needed.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from typing import Any

from alpa_dejavu._util.threads import machine_memory_bytes
from alpa_dejavu.calibration.bench import HostProbe, MeasurementError
from alpa_dejavu.calibration.host_probes._copies import Trip, copier
from alpa_dejavu.calibration.host_probes._files import file_figures
from alpa_dejavu.calibration.host_probes._updates import updater

__all__ = ["Trip", "copied", "copier", "host_figures"]

_MEASURED_S, _BESIDE_S = 0.25, 1.0
"""How long copies and updates go on, alone and beside each other."""
_FEWEST_RUNS = 3


def copied(trip: Trip, start: float = 0.0) -> dict[str, float]:
    """Copies to a device and back for a while, and returns the seconds of both ways by name.

    Args:
        trip: a function that copies once, which a `copier` yields.
        start: the time, as `time.time` gives it, from which on it copies, so that devices copy together.
    """
    trip()
    time.sleep(max(start - time.time(), 0.0))
    there, back = zip(*_repeated(trip, _MEASURED_S), strict=True)
    return {"to_device_s": statistics.median(there), "to_host_s": statistics.median(back)}


def host_figures(probe: HostProbe, device: Any) -> dict[str, float]:
    """Measures on this host what a probe of its memory asks for, and returns seconds and bytes by the probe's `names`.

    Args:
        probe: what is measured; of copies, those of one device.
        device: the JAX device; None: it is a part of the host's processors, and a process of its own stands in for it.

    Raises:
        MeasurementError: it can't be measured; says why.
    """
    with _told():
        if probe.name == "memory":
            return {"num_bytes": machine_memory_bytes()}
        if probe.name == "update":
            with updater(probe.num_bytes // 4) as begin:
                return {"update_s": statistics.median(begin(_MEASURED_S)())}
        if probe.name == "copies":
            with copier(probe.num_bytes, device) as trip:
                return copied(trip)
        if probe.name == "files":
            return file_figures(probe.folder, probe.num_bytes)
        with updater(probe.num_bytes // 4) as begin, copier(probe.num_bytes, device) as trip:
            finish = begin(_BESIDE_S)
            trips = _repeated(trip, _BESIDE_S)
            return {"update_s": statistics.median(finish()), "copy_s": statistics.median(map(sum, trips))}


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raises MeasurementError for what may go wrong on a host."""
    try:
        yield
    except OSError as error:
        raise MeasurementError(f"{error.strerror or error}") from error
    except EOFError as error:
        raise MeasurementError("the process that measures ended early") from error


def _repeated(trip: Trip, window_s: float) -> list[tuple[float, float]]:
    """Returns the seconds of each copy to a device and back."""
    found, stop = list[tuple[float, float]](), time.perf_counter() + window_s
    while len(found) < _FEWEST_RUNS or time.perf_counter() < stop:
        found.append(trip())
    return found
