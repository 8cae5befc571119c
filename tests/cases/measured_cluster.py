"""A made-up cluster that is measured: its true figures are known, and each measurement takes a second."""

import contextlib
import dataclasses

import numpy as np

from alpa_dejavu.calibration.bench import CollectiveProbe, HostProbe, MeasurementError, ProbeBench
from alpa_dejavu.calibration.calibrate import calibrate, identity
from alpa_dejavu.calibration.fit_links import predicted_s
from alpa_dejavu.calibration.measurements import Measurements
from alpa_dejavu.problem import Cluster, Device, Link

PRIOR = Device("test", 1e10, {"float32": 5e10}, 5e9, 1e10, dispatch_s=1e-3, step_s=1e-3)
TRUE = dataclasses.replace(PRIOR, dispatch_s=4e-3, step_s=7e-3)
LINK, TRUE_LINK = Link(5e-5, 3e9, 3e-3, 3e8), Link(1.2e-4, 1e9, 1e-3, 5e8)


def cluster_of(device, link, hosts=1, devices=2):
    return Cluster.uniform("made up", [f"h{n}" for n in range(hosts)], device, devices, link, link)


class MadeUp(ProbeBench):
    """A cluster whose true figures are known; each measurement takes a second, and has some noise."""

    def __init__(self, noise=0.03, failing=()):
        self.now, self.opened, self.ran, self.failing = 0.0, [], [], failing
        self._noise, self._rng = noise, np.random.default_rng(0)

    @contextlib.contextmanager
    def open(self, place):
        self.opened.append(place)
        yield self.run

    def run(self, probe):
        self.now += 1.0
        self.ran.append(probe)
        if getattr(probe, "name", "") in self.failing:
            raise MeasurementError("out of memory")
        return {name: value * np.exp(self._noise * self._rng.normal()) for name, value in took(probe).items()}


def took(probe):
    if isinstance(probe, CollectiveProbe):
        return {"run_s": predicted_s(probe, TRUE_LINK, 2)}
    if isinstance(probe, HostProbe):
        return took_in_memory(probe)
    sent_s, rate = TRUE_LINK.sending
    return {"dispatch_s": TRUE.dispatch_s, "step_s": TRUE.step_s, "send_s": sent_s + probe.num_bytes / rate}


def took_in_memory(probe):
    """Copies of one device at 10 GB/s, of all at 15; 20 GB/s of memory; reads at 3 GB/s, writes at 1; each half as fast
    again beside the other.
    """
    copied_s = probe.num_devices * probe.num_bytes / (1e10 if probe.num_devices == 1 else 1.5e10)
    updated_s = 7 * probe.num_bytes / 2e10
    read_s, written_s = probe.num_bytes / 3e9, probe.num_bytes / 1e9
    return {
        "memory": {"num_bytes": 1e11},
        "update": {"update_s": updated_s},
        "copies": {"to_device_s": copied_s, "to_host_s": copied_s},
        "update beside copies": {"update_s": 1.5 * updated_s, "copy_s": 1.5 * 2 * copied_s},
        "files": {
            "write_s": written_s, "read_s": read_s, "write_beside_s": 1.5 * written_s, "read_beside_s": 1.5 * read_s,
            "free_bytes": 1e12,
        },
    }[probe.name]  # fmt: skip


def kept(tmp_path, cluster, resume=False):
    return Measurements(tmp_path / "c.json.measurements.jsonl", identity(cluster), resume)


def measure(tmp_path, cluster, bench, budget_s=1000.0, resume=False):
    store = kept(tmp_path, cluster, resume)
    return calibrate(cluster, bench, store, budget_s, "made-up", clock=lambda: bench.now)
