"""Writing a cluster as a file: in SI units, so that reading it gives the same cluster."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from alpa_dejavu._util.json_file import write_whole
from alpa_dejavu.clusters.figures import with_units, written_figure
from alpa_dejavu.problem import Cluster, Host, Link


def write_cluster(cluster: Cluster, path: str | os.PathLike[str]) -> None:
    """Writes a cluster to a file that `named_cluster` and `--cluster` take; raises ValueError if it can't."""
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
        figure = written_figure("checkpoint_bytes_per_s", cluster.checkpoint_bytes_per_s)
        parts["checkpoint_bytes_per_s"] = json.dumps(figure)
    if cluster.media:
        parts["media"] = json.dumps(written_figure("media", cluster.media))
    if cluster.reduction_servers:
        parts["reduction_servers"] = _listed([with_units(server) for server in cluster.reduction_servers])
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {text}" for key, text in parts.items()) + "\n}\n"


def _listed(entries: Sequence[Mapping[str, Any]]) -> str:
    return "[\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]" if entries else "[]"


def _host(host: Host, within: Link) -> dict[str, Any]:
    figures = {name: getattr(host, name) for name in ("price_per_hour", "memory_margin")}
    return {
        "name": host.name,
        "devices": host.num_devices,
        **{name: written_figure(name, value) for name, value in figures.items() if value is not None},
        **({} if host.memory is None else {"host_memory": with_units(host.memory)}),
        "within": with_units(within),
        "device": with_units(host.device),
    }


def _links(cluster: Cluster) -> list[dict[str, Any]]:
    entries = []
    names = [host.name for host in cluster.hosts]
    for a, row in enumerate(cluster.links):
        alike: dict[Link, list[str]] = {}
        for b, link in enumerate(row):
            if b != a:
                alike.setdefault(link, []).append(names[b])
        entries += [{"from": [names[a]], "to": others, **with_units(link)} for link, others in alike.items()]
    return entries
