"""The roofline of this machine's CPU: measured once, and kept for the processes that come after.

The devices of a CPU cluster share the cores and the memory of their host: what is measured is what the whole host
does, and a device is given its share of it, as if all devices computed all the time. That is what they do in a
pipeline's steady state; while it fills and drains, a stage runs faster than this says.

The figures are kept in the user's cache by the machine's fingerprint. A process that finds them there measures two of
them again, and all where these have changed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import os
import pathlib
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from alpa_dejavu._util import units
from alpa_dejavu._util.cache_folder import cache_folder
from alpa_dejavu._util.dataclass_format import object_of
from alpa_dejavu._util.extras import installed_version
from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu._util.threads import machine_memory_bytes, usable_cores
from alpa_dejavu.clusters._cpu_figures import matching, measured_core
from alpa_dejavu.problem import Device

_log = logging.getLogger(__name__)

_FILE = "this-machine.json"
_WAITING = 0.2
"""The share of its time that a device waits for others of its process, for whose parts of an operator XLA has one pool
of threads. It isn't measured: on two cores, stages of two devices took 1.18 to 1.34 times as long alone as beside a
second stage, which 0.15 to 0.25 makes."""
_OWN_THREADS = "--xla_cpu_multi_thread_eigen=false", "onednn-matmul-rewriter"
"""With this flag of XLA, and without this pass, a device computes products on its own thread."""


def on_one_cpu() -> dict[str, Any]:
    """Returns what a cluster has whose devices all share this machine's CPU, by the names of `Cluster`'s fields."""
    flags = os.environ.get("XLA_FLAGS", "")
    return {"cores": usable_cores(), "waiting": 0.0 if all(flag in flags for flag in _OWN_THREADS) else _WAITING}


def measured_cpu(num_devices: int) -> Device:
    """Measures this machine's CPU; returns as a device a share of it for so many devices that compute at a time."""
    core = _core()
    cores = usable_cores()
    # While all devices compute, each has its share of the cores' rates; alone, none starts sooner than a core does.
    alone = core.slower(max(num_devices / cores, 1.0))
    return dataclasses.replace(
        core.slower(num_devices / cores),
        name="cpu",
        memory_bytes=machine_memory_bytes() / num_devices,
        kernel_s=alone.kernel_s,
        small_products=alone.small_products,
        dispatch_s=alone.dispatch_s,
        step_s=alone.step_s,
        origin=f"measured on this machine, {num_devices} devices at a time",
    )


@functools.cache
def _core() -> Device:
    """One core of this machine as a device: as it is kept, or else measured."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]), jax.disable_jit(False):
        kept = kept_figures(_FILE, lambda data: object_of(Device, data["core"]))
        if kept is not None and matching(kept):
            return kept
        started = time.perf_counter()
        core = measured_core(machine_memory_bytes())
    _log.info("measured in %s: %s", units.seconds(time.perf_counter() - started), core)
    keep_figures(_FILE, {"core": dataclasses.asdict(core)})
    return core


_VERSION = 7
_DEVICES_FLAG = "--xla_force_host_platform_device_count="
_Figures = TypeVar("_Figures")


def kept_figures(file: str, read: Callable[[Any], _Figures]) -> _Figures | None:
    """Returns what a function reads from the figures that are kept of this machine in a file of the cache's folder;
    None where there are none that can be read. The function may raise LookupError, TypeError or ValueError.
    """
    folder = cache_folder()
    try:
        figures = None if folder is None else json.loads((folder / file).read_text(encoding="utf-8"))
        return read(figures) if figures and figures["fingerprint"] == _fingerprint() else None
    except FileNotFoundError:
        return None
    except (OSError, LookupError, TypeError, ValueError) as error:
        _log.warning("%s can't be read (%s): this machine is measured anew", file, error)
        return None


def keep_figures(file: str, figures: Mapping[str, Any]) -> None:
    """Writes figures of this machine for other processes; where that fails they measure them, too."""
    folder = cache_folder()
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / file, json.dumps({"fingerprint": _fingerprint(), **figures}, indent=1) + "\n")
    except OSError as error:
        _log.warning("this machine's figures can't be kept in %s (%s)", folder, error)


def _fingerprint() -> dict[str, Any]:
    """Whatever a machine's figures depend on."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor()
    versions = {name: installed_version(name) for name in ("jaxlib", "alpa_dejavu")}
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_DEVICES_FLAG)]
    return {
        "version": _VERSION, "machine": platform.node(), "cpu": model, "cores": usable_cores(),
        "memory_bytes": machine_memory_bytes(), "xla_flags": sorted(flags), **versions,
    }  # fmt: skip
