"""Writing a cluster as a file: in SI units, so that reading it gives the same cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu.problem import Cluster, Device, Host, HostMemory, Link, Nvme

_SOURCE = "written by alpa-dejavu"
_UNITS = (("_bytes_per_s", "bytes/s"), ("flop_per_s", "FLOP/s"), ("bytes_per_s", "bytes/s"), ("_bytes", "bytes"))


def write_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Writes a cluster, whole or not at all, to a file that `named_cluster` and `--cluster` take.

    Raises:
        ValueError: the file can't be written.
    """
    write_whole(pathlib.Path(path), cluster_text(cluster))


def cluster_text(cluster: Cluster) -> str:
    """Returns the JSON text of a cluster's file: a line for each host, and for the links of a host that are alike."""
    hosts = [_host(host, cluster.links[n][n]) for n, host in enumerate(cluster.hosts)]
    parts: dict[str, str] = {
        "version": "1",
        "name": json.dumps(cluster.name),
        "cores": json.dumps(cluster.cores),
        "hosts": _listed(hosts),
        "links": _listed(_links(cluster)),
    }
    if cluster.waiting:
        parts["waiting"] = json.dumps(cluster.waiting)
    if cluster.checkpoint_bytes_per_s is not None:
        figure = _figure("checkpoint_bytes_per_s", cluster.checkpoint_bytes_per_s)
        parts["checkpoint_bytes_per_s"] = json.dumps(figure)
    if cluster.media:
        parts["media"] = json.dumps({name: _figure("bytes_per_s", rate) for name, rate in cluster.media.items()})
    if cluster.reduction_servers:
        parts["reduction_servers"] = _listed(
            [
                {"name": server.name, "bytes_per_s": _figure("bytes_per_s", server.bytes_per_s)}
                for server in cluster.reduction_servers
            ]
        )
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}\n"


def _listed(entries: Sequence[Mapping[str, Any]]) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]" if entries else "[]"


def _host(host: Host, within: Link) -> dict[str, Any]:
    figures = {"price_per_hour": (host.price_per_hour, "USD/hour"), "memory_margin": (host.memory_margin, "1")}
    return {
        "name": host.name,
        "devices": host.num_devices,
        **{
            name: {"value": value, "unit": unit, "source": _SOURCE}
            for name, (value, unit) in figures.items()
            if value is not None
        },
        **({} if host.memory is None else {"host_memory": _figures(host.memory)}),
        "within": _link(within),
        "device": _device(host.device),
    }


def _links(cluster: Cluster) -> list[dict[str, Any]]:
    entries = []
    names = [host.name for host in cluster.hosts]
    for a, row in enumerate(cluster.links):
        alike: dict[Link, list[str]] = {}
        for b, link in enumerate(row):
            if b != a:
                alike.setdefault(link, []).append(names[b])
        entries += [{"from": [names[a]], "to": others, **_link(link)} for link, others in alike.items()]
    return entries


def _link(link: Link) -> dict[str, Any]:
    figures = {
        field.name: _figure(field.name, getattr(link, field.name))
        for field in dataclasses.fields(link)
        if field.name != "shares" and getattr(link, field.name) is not None
    }
    return figures | ({"shares": list(link.shares)} if link.shares else {})


def _figures(memory: HostMemory | Nvme) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for field in dataclasses.fields(memory):
        value = getattr(memory, field.name)
        if value is not None:
            said[field.name] = _figures(value) if isinstance(value, Nvme) else _figure(field.name, value)
    return said


def _device(device: Device) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for field in dataclasses.fields(device):
        value = getattr(device, field.name)
        if field.name == "flop_per_s":
            said[field.name] = {dtype: _figure("flop_per_s", rate) for dtype, rate in value.items()}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            known = dataclasses.asdict(value)
            said[field.name] = {name: one for name, one in known.items() if one is not None}
        elif value is None:
            continue
        elif field.name.endswith(("_s", "_bytes")):
            said[field.name] = _figure(field.name, value)
        else:
            said[field.name] = value
    return said


def _figure(name: str, value: float) -> dict[str, Any]:
    unit = next((unit for ending, unit in _UNITS if name.endswith(ending)), "s")
    return {"value": value, "unit": unit, "source": _SOURCE}
