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
import logging
import os
import time
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu._util.machine_memory import machine_memory_bytes
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters._cpu_figures import matching, measured_core
from alpa_dejavu.clusters._machine_figures import keep_figures, kept_figures
from alpa_dejavu.problem import Device

__all__ = ["measured_cpu", "on_one_cpu"]

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
    return {"cores": usable_cores(), "waiting": 0.0 if all(one in flags for one in _OWN_THREADS) else _WAITING}


def measured_cpu(num_devices: int, memory_bytes: float | None = None) -> Device:
    """Measures this machine's CPU, and returns one of its `num_devices` equal shares as a device.

    Args:
        num_devices: how many such devices compute on this machine at the same time.
        memory_bytes: the machine's memory in bytes; None: as much as it has.
    """
    core = _core()
    cores = usable_cores()
    # While all devices compute, each has its share of the cores' rates; alone, none starts sooner than a core does.
    slowdown = max(num_devices / cores, 1.0)
    whole = machine_memory_bytes() if memory_bytes is None else memory_bytes
    return dataclasses.replace(
        core.slower(num_devices / cores),
        name="cpu",
        memory_bytes=whole / num_devices,
        kernel_s=core.kernel_s * slowdown,
        small_products=None if core.small_products is None else core.small_products.slower(slowdown),
        dispatch_s=core.dispatch_s * slowdown,
        step_s=core.step_s * slowdown,
        origin=f"measured on this machine, {num_devices} devices at a time",
    )


@functools.cache
def _core() -> Device:
    """Returns one core of this machine as a device: as it is kept, or else measured."""
    import jax

    with jax.default_device(jax.devices("cpu")[0]), jax.disable_jit(False):
        kept = kept_figures(_FILE, lambda found: Device.of(found["core"]))
        if kept is not None and matching(kept):
            return kept
        started = time.perf_counter()
        core = measured_core(machine_memory_bytes())
    _log.info("measured in %s: %s", units.seconds(time.perf_counter() - started), core)
    keep_figures(_FILE, {"core": dataclasses.asdict(core)})
    return core
