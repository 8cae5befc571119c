"""Hardware as data: a JSON file for each machine type, with the source of each figure in it.

A file has `version` 1, `name`, `accelerator_type` (Ray's word for the device, or null), `devices_per_host`, and the
objects `device`, `within` and `between`, whose figures are {"value": number, "source": text} in SI units.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from alpa_dejavu.latency import measured_cpu
from alpa_dejavu.problem import Cluster, Device, Link

__all__ = ["known_machines", "local_links", "machine_for", "named_cluster"]

_FOLDER = pathlib.Path(__file__).parent
_VERSION = 1


def known_machines() -> list[str]:
    """The names of all machine types ("local-cpu" has links alone: its devices are measured here).

    >>> "p3.16xlarge" in known_machines()
    True
    """
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def named_cluster(name: str, num_hosts: int = 1, devices_per_host: int | None = None) -> Cluster:
    """A cluster of equal hosts of a machine type, or of the machine that a JSON file of the user's describes.

    Args:
        name: one of `known_machines()`, or the path of a file.
        num_hosts: how many.
        devices_per_host: if not all of a host's devices are used.

    Raises:
        ValueError: no such machine, a file of another version, a missing figure, or more devices than a host has.

    >>> named_cluster("p3.16xlarge", num_hosts=2).num_devices
    16
    """
    data = _read(name)
    whole = int(data["devices_per_host"] or os.cpu_count() or 1)
    used = whole if devices_per_host is None else devices_per_host
    if data["device"] is not None and used > whole:
        raise ValueError(f"a {data['name']} has {whole} devices, but {used} are asked for on a host; take more hosts")
    try:
        device = measured_cpu(used * num_hosts) if data["device"] is None else _device(data["device"])
        within, between = _link(data["within"]), _link(data["between"])
    except KeyError as missing:
        raise ValueError(f"the machine file {name!r} lacks the figure {missing}; see alpa_dejavu/clusters/") from None
    hosts = [f"{data['name']}-{n}" for n in range(num_hosts)]
    cluster = Cluster.uniform(f"{num_hosts} x {data['name']}", hosts, device, used, within, between)
    return dataclasses.replace(cluster, cores=os.cpu_count()) if data["device"] is None else cluster


def machine_for(accelerator_type: str) -> str | None:
    """The machine type that stands for a device by Ray's name of it, if there is one: the one with the most devices.

    >>> machine_for("V100")
    'p3.16xlarge'
    """
    fitting = [name for name in known_machines() if _read(name).get("accelerator_type") == accelerator_type]
    return max(fitting, key=lambda name: int(_read(name)["devices_per_host"] or 0), default=None)


def local_links() -> tuple[Link, Link]:
    """Within a host of a CPU cluster, and between two of them: see `local-cpu.json`."""
    data = _read("local-cpu")
    return _link(data["within"]), _link(data["between"])


def _link(figures: Mapping[str, Any]) -> Link:
    """A link from its figures in a machine file."""
    return Link(**{name: float(figure["value"]) for name, figure in figures.items()})


def _device(figures: Mapping[str, Any]) -> Device:
    names = ("memory_bytes", "vector_flop_per_s", "memory_bytes_per_s", "kernel_s", "dispatch_s", "step_s")
    return Device(
        name=figures["name"],
        flop_per_s={dtype: float(figure["value"]) for dtype, figure in figures["flop_per_s"].items()},
        origin=figures["memory_bytes_per_s"]["source"],
        **{name: float(figures[name]["value"]) for name in names},
    )


def _read(name: str) -> Mapping[str, Any]:
    path = _FOLDER / f"{name}.json"
    if not path.exists():
        path = pathlib.Path(name)
    if not path.is_file():
        raise ValueError(f"there is no machine {name!r}; known are {', '.join(known_machines())}, or give a JSON file")
    data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if data.get("version") != _VERSION:
        raise ValueError(f"{path} is of version {data.get('version')!r}, but this release reads version {_VERSION}")
    return data
