"""A cluster as what JSON has: devices and links that are alike are written once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from alpa_dejavu.problem import Cluster, Device, Host, HostMemory, Link, Nvme, ReductionServer

Data = dict[str, Any]


def cluster_data(cluster: Cluster) -> Data:
    """Returns a cluster as JSON data, in which hosts refer to devices and links by number."""
    devices: dict[Device, int] = {}
    links: dict[Link, int] = {}
    hosts = [
        {
            **_fields(host),
            "device": devices.setdefault(host.device, len(devices)),
            "memory": None if host.memory is None else dataclasses.asdict(host.memory),
        }
        for host in cluster.hosts
    ]
    matrix = [[links.setdefault(link, len(links)) for link in row] for row in cluster.links]
    return {
        "name": cluster.name,
        "cores": cluster.cores,
        "waiting": cluster.waiting,
        "checkpoint_bytes_per_s": cluster.checkpoint_bytes_per_s,
        "media": dict(cluster.media),
        "reduction_servers": [_fields(server) for server in cluster.reduction_servers],
        "hosts": hosts,
        "machine": cluster.machine,
        "machine_file": cluster.machine_file,
        "matrix": matrix,
        "devices": [dataclasses.asdict(device) for device in devices],
        "links": [_fields(link) for link in links],
    }


def cluster_of(data: Mapping[str, Any]) -> Cluster:
    """Returns the cluster that JSON data made by `cluster_data` describe."""
    devices = [Device.of(each) for each in data["devices"]]
    links = [Link(**{**each, "shares": tuple(each["shares"])}) for each in data["links"]]
    return Cluster(
        name=data["name"],
        hosts=tuple(
            Host(**{**host, "device": devices[host["device"]], "memory": _memory(host.get("memory"))})
            for host in data["hosts"]
        ),
        links=tuple(tuple(links[n] for n in row) for row in data["matrix"]),
        cores=data["cores"],
        waiting=data.get("waiting", 0.0),
        checkpoint_bytes_per_s=data.get("checkpoint_bytes_per_s"),
        media=data["media"],
        reduction_servers=tuple(ReductionServer(**each) for each in data.get("reduction_servers", ())),
        machine=data.get("machine", ""),
        machine_file=data.get("machine_file", ""),
    )


def _memory(data: Mapping[str, Any] | None) -> HostMemory | None:
    """The memory of a host; what was kept before there was such an entry says nothing of it."""
    if data is None:
        return None
    return HostMemory(**{**data, "nvme": None if data["nvme"] is None else Nvme(**data["nvme"])})


def _fields(one: Any) -> Data:
    return {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
