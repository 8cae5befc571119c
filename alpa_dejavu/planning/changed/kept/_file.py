"""The file format of what is kept of a plan: JSON's data, version 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from alpa_dejavu.clusters.space import search_space
from alpa_dejavu.planning.changed.kept._kept import Kept
from alpa_dejavu.planning.search.models._model import model_data, model_of
from alpa_dejavu.planning.search.models._sharding import KeptLayers, Mesh, sharding_data, sharding_of
from alpa_dejavu.problem import Cluster, Device, Host, HostMemory, Link, Nvme, ReductionServer, Run
from alpa_dejavu.sharding.sharded import ModelSharding, solved_for
from alpa_dejavu.sharding.transformers import transformer_data, transformer_of

VERSION = 1


def kept_data(kept: Kept) -> dict[str, Any]:
    """Returns as JSON data the record of all that planning again needs: model, cluster, run and search space."""
    sharding = kept.model.sharding
    return {
        "batch": kept.batch,
        "num_micro_batches": kept.run.num_micro_batches,
        "schedule": kept.run.schedule,
        "remat": list(kept.remat),
        "zero": list(kept.zero),
        "submeshes": kept.submeshes,
        "imbalance": None if math.isinf(kept.imbalance) else kept.imbalance,
        "models": list(kept.models),
        "memory_margin": kept.memory_margin,
        "offload": kept.offload,
        "replicas": kept.replicas,
        "cluster": cluster_data(kept.cluster),
        "model": transformer_data(kept.model) or model_data(kept.model),
        "sharding": sharding_data(sharding, _meshes(kept)) if isinstance(sharding, ModelSharding) else None,
    }


def kept_of(data: Mapping[str, Any]) -> Kept:
    """Returns the record for planning again that JSON data made by `kept_data` describe."""
    model = transformer_of(data["model"]) if "transformer" in data["model"] else model_of(data["model"])
    if data["sharding"] is not None:
        model = dataclasses.replace(model, sharding=sharding_of(data["sharding"], model))
    latency, communication = data["models"]
    return Kept(
        model=model,
        cluster=cluster_of(data["cluster"]),
        run=Run(int(data["num_micro_batches"]), data["schedule"]),
        batch=int(data["batch"]),
        remat=tuple(data["remat"]),
        zero=tuple(map(int, data["zero"])),
        submeshes=data["submeshes"],
        imbalance=math.inf if data["imbalance"] is None else float(data["imbalance"]),
        models=(latency, communication),
        memory_margin=data.get("memory_margin"),
        offload=data.get("offload", "none"),
        replicas=int(data.get("replicas", 1)),
    )


def _meshes(kept: Kept) -> list[Mesh]:
    """Returns the meshes that a search on the plan's cluster asks for, as far as they were solved already."""
    micro_batch = kept.batch // kept.run.num_micro_batches
    rules = kept.submeshes, kept.remat, kept.zero, kept.imbalance, kept.replicas
    space = search_space(kept.cluster, micro_batch, *rules)
    meshes = dict.fromkeys(solved_for(config) for row in space.configs for config in row if config is not None)
    solved = kept.model.sharding.solved if isinstance(kept.model.sharding, ModelSharding) else None
    return [mesh for mesh in meshes if mesh in solved.meshes] if isinstance(solved, KeptLayers) else [*meshes]


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
