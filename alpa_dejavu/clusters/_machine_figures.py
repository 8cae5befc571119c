"""Figures of this machine, kept in the user's cache by the machine's fingerprint for the processes that come after."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import platform
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from alpa_dejavu._util.cache_folder import cache_folder
from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu._util.machine_memory import machine_memory_bytes
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu._util.versions import installed_version

__all__ = ["keep_figures", "kept_figures"]

_log = logging.getLogger(__name__)

_VERSION = 7
_DEVICES_FLAG = "--xla_force_host_platform_device_count="
_Figures = TypeVar("_Figures")


def kept_figures(file: str, read: Callable[[Any], _Figures]) -> _Figures | None:
    """Returns what a function reads from the figures that are kept of this machine in a file; None where there are none
    that can be read.

    Args:
        file: the name of the file in the cache's folder.
        read: a function of the file's JSON object; it may raise LookupError, TypeError or ValueError.
    """
    folder = cache_folder()
    try:
        found = None if folder is None else json.loads((folder / file).read_text(encoding="utf-8"))
        return read(found) if found and found["fingerprint"] == _fingerprint() else None
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
    """Returns what a machine's figures depend on."""
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
