"""The links between CPU devices of this machine, measured once and kept: those of one process, and of several.

The devices of a Ray node are devices of one process, whose collectives go through memory. Those of several Ray nodes of
one machine are devices of a process each, whose collectives gloo carries over the loopback interface. Both are measured
by all-reduces. A tensor goes from stage to stage through Ray, which is work for a core: Python's, and copies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from alpa_dejavu._util import units
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.dataclass_format import object_of
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.clusters.cpu_exchange import CACHED_SHARE, LOOPBACK, all_reduce_between, all_reduce_within, large_bytes
from alpa_dejavu.clusters.cpu_probe import keep_figures, kept_figures
from alpa_dejavu.problem import Device, Link

_log = logging.getLogger(__name__)

_BETWEEN_FILE, _WITHIN_FILE = "this-machine-link.json", "this-machine-links-of-{}.json"
_PATIENCE_S = 20.0
_SENT_STARTS = {"within": 1.6, "between": 3.0}
_SENT_COPIES = {"within": 20.0, "between": 27.0}
"""A tensor's way through Ray takes as long as so many starts of a computation by Alpa's runtime, and each byte as long
as so many that are read from memory or written there. Between Ray nodes it goes through two more processes. On two
cores, the former was the CPU time of sends, and the latter is what steps took longer with the same stages on two nodes.
"""


def cpu_links(usual: tuple[Link, Link], device: Device, num_devices: int, all_devices: int) -> tuple[Link, Link]:
    """Returns the links within a host of so many CPU devices, those of one process, and between two such hosts, all of
    them on this machine, as they are while all devices of all hosts compute: measured, or as they are kept from before.
    The `usual` ones are taken, with a warning, where nothing can be measured; a tensor's way through Ray takes a
    device's starts and copies.
    """
    within, between = usual
    if num_devices > 1:
        within = _beside(_measured_within(num_devices, within), num_devices, all_devices)
    if all_devices > num_devices:
        between = _beside(_measured_between(between), 2, all_devices)
    return _sending(within, device, "within"), _sending(between, device, "between")


def _sending(link: Link, device: Device, where: str) -> Link:
    """The link with the latency and the rate of a tensor that goes through Ray."""
    bytes_per_s = device.uncached_bytes_per_s or device.memory_bytes_per_s
    return dataclasses.replace(
        link, send_latency_s=_SENT_STARTS[where] * device.dispatch_s, send_bytes_per_s=bytes_per_s / _SENT_COPIES[where]
    )


def _beside(link: Link, num_devices: int, all_devices: int) -> Link:
    """The link between devices, measured alone, as it is while all compute: copies take longer, waiting doesn't."""
    together, alone = (max(count / usable_cores(), 1.0) for count in (all_devices, num_devices))
    return link.carrying(alone / together)


@functools.cache
def _measured_within(num_devices: int, usual: Link) -> Link:
    """The link between devices of one process."""

    def measured() -> dict[str, float]:
        serve = all_reduce_within, num_devices
        small_s, cached_s, large_s = _answer([serve], f"{num_devices} devices of a process")
        rounds, large = 2 * (num_devices - 1), large_bytes(num_devices)
        moved = rounds / num_devices * large
        return {
            "latency_s": small_s / rounds,
            "bytes_per_s": moved / large_s,
            # Too short to be measured, it isn't taken for nothing.
            "cached_bytes_per_s": moved / CACHED_SHARE / max(cached_s, large_s / CACHED_SHARE**2),
            # In between, the cache holds a part of them.
            "cached_bytes": large / CACHED_SHARE**0.5,
        }

    return _known(_WITHIN_FILE.format(num_devices), "devices of a process", measured, usual)


@functools.cache
def _measured_between(usual: Link) -> Link:
    """The link between devices of two processes: an all-reduce of two is two messages of half the bytes."""

    def measured() -> dict[str, float]:
        with socket.socket() as free:
            free.bind((LOOPBACK, 0))
            port = free.getsockname()[1]
        small_s, large_s = _answer([(all_reduce_between, rank, port) for rank in range(2)], "two processes")
        return {"latency_s": small_s / 2, "bytes_per_s": large_bytes() / large_s}

    return _known(_BETWEEN_FILE, "processes", measured, usual)


def _known(file: str, between: str, measured: Callable[[], dict[str, float]], usual: Link) -> Link:
    """The link with the figures that are kept in a file, or else measured and then kept there."""
    link = kept_figures(file, lambda kept: object_of(Link, kept))
    if link is not None:
        return link
    started = time.perf_counter()
    try:
        figures = measured()
        link = object_of(Link, figures)
    except (OSError, EOFError, RuntimeError, ValueError) as error:
        _log.warning("the link between %s can't be measured (%s): the usual one is taken", between, error)
        return usual
    _log.info("measured the link between %s in %s", between, units.seconds(time.perf_counter() - started))
    keep_figures(file, figures)
    return link


def _answer(serves: list[tuple[Any, ...]], of: str) -> tuple[float, ...]:
    """The answer of the first of some processes, which run side by side; RuntimeError if it takes too long."""
    with contextlib.ExitStack() as running:
        ends = [
            running.enter_context(child_process(*serve, name=f"link-{n}", patience_s=2.0))
            for n, serve in enumerate(serves)
        ]
        if not ends[0].poll(_PATIENCE_S):
            raise RuntimeError(f"{of} didn't exchange anything in {units.seconds(_PATIENCE_S)}")
        answer: tuple[float, ...] = ends[0].recv()
        return answer
