"""The record of what a plan was made from, and its JSON data, version 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._util.dataclass_format import object_of
from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.clusters.space import PLAIN_CHOICES, DivisionChoices, submeshes
from alpa_dejavu.costs.memory_margin import COUNTED
from alpa_dejavu.planning.search.models._model import model_data, model_of
from alpa_dejavu.planning.search.models._sharding import KeptLayers, Mesh, sharding_data, sharding_of
from alpa_dejavu.planning.search.restriction import choices_of
from alpa_dejavu.planning.task import SpaceRules
from alpa_dejavu.problem import (
    REMAT,
    Cluster,
    ClusterSummary,
    Device,
    Host,
    HostMemory,
    Link,
    MeshConfig,
    Model,
    Plan,
    PricedBy,
    ReductionServer,
    Run,
)
from alpa_dejavu.sharding.sharded import ModelSharding, solved_for
from alpa_dejavu.sharding.transformers import TransformerSharding, transformer_data, transformer_of

if TYPE_CHECKING:
    from alpa_dejavu.planning.result import PlanningResult

VERSION = 1


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """A record, kept beside a plan, of all that planning again needs, but for the latency and communication models."""

    model: Model  # the layers, for a micro-batch of the run, with their sharding on the meshes that were looked at
    cluster: Cluster
    run: Run
    batch: int
    rules: SpaceRules  # the choices that stages have
    # The latency and the communication model that priced the plan, by the names of their classes.
    models: tuple[str, str] = ("AnalyticLatency", "AlphaBeta")
    memory_margin: float | None = None  # the share of the memory that the plan left free; None: the hosts' own

    @classmethod
    def of(cls, planned: PlanningResult) -> Kept:
        """Returns the record of what a plan follows from. Raises ValueError for an unknown batch, or unknown costs."""
        costs, batch = planned.table.stage_costs, planned.plan.batch
        priced_by = planned.plan.priced_by or PricedBy()
        if costs is None or batch is None:
            raise ValueError("what the plan was made from isn't known: its batch, or its costs")
        configs = [config for row in planned.space.configs for config in row if config is not None]
        looked_at = set(planned.space.submeshes)
        sized = isinstance(planned.model.sharding, TransformerSharding)  # whose space has only what may be of use
        remats = priced_by.remat or REMAT if sized else dict.fromkeys(config.remat for config in configs)
        rules = SpaceRules(
            submeshes="power_of_two" if looked_at <= set(submeshes(planned.cluster)) else "all",
            remat=tuple(remats),
            zero=priced_by.zero or (0, 2, 3) if sized else tuple(sorted({config.zero for config in configs})),
            imbalance=planned.space.allowed_imbalance,
            offload=priced_by.offload,
            replicas=priced_by.replicas,
            # Of a plan that was given nobody asked for any choices.
            divisions=choices_of(planned.model) if planned.divisions == PLAIN_CHOICES else planned.divisions,
        )
        free_share = None if planned.table.margin is COUNTED else planned.table.margin.free_share
        return cls(planned.model, planned.cluster, planned.run, batch, rules, costs.models.names, free_share)

    def with_replicas(self, least: int) -> Kept:
        """Returns the same record, but for the least number of replicas of each stage."""
        return dataclasses.replace(self, rules=dataclasses.replace(self.rules, replicas=least))

    def knows(self, config: MeshConfig) -> bool:
        """Returns whether it says how layers are sharded on a config's mesh; True if it has no sharding at all."""
        knows = getattr(getattr(self.model.sharding, "solved", None), "knows", None)
        return knows is None or bool(knows(config))

    def differences(self, plan: Plan) -> list[str]:
        """Returns sentences that say in what a plan differs from the one that this record was kept for."""
        pairs: dict[str, tuple[object, object]] = {
            "batch": (self.batch, plan.batch),
            "num_micro_batches": (self.run.num_micro_batches, plan.num_micro_batches),
            "schedule": (self.run.schedule, plan.schedule),
            "num_layers": (self.model.num_layers, plan.num_layers),
            "cluster": (self.cluster.name, plan.cluster),
        }
        if plan.hardware is not None:
            own = summary_of(self.cluster)
            pairs["hosts"] = _host_names(own), _host_names(plan.hardware)
            pairs["hardware"] = own.text, plan.hardware.text
        return [f"{name} is {ours!r}, not {theirs!r}" for name, (ours, theirs) in pairs.items() if ours != theirs]


def _host_names(hardware: ClusterSummary) -> str:
    return " ".join(host.name for host in hardware.hosts)


def kept_data(kept: Kept) -> dict[str, Any]:
    """Returns as JSON data the record of all that planning again needs: model, cluster, run and search space."""
    sharding, rules = kept.model.sharding, kept.rules
    return {
        **{name: getattr(kept, name) for name in ("batch", "models", "memory_margin")},
        **{name: getattr(rules, name) for name in ("remat", "zero", "submeshes", "offload", "replicas")},
        "num_micro_batches": kept.run.num_micro_batches,
        "schedule": kept.run.schedule,
        "divisions": dataclasses.asdict(rules.divisions),
        "imbalance": None if math.isinf(rules.imbalance) else rules.imbalance,
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
    rules = SpaceRules(
        data["submeshes"],
        tuple(data["remat"]),
        tuple(map(int, data["zero"])),
        math.inf if data["imbalance"] is None else float(data["imbalance"]),
        data.get("offload", "none"),
        int(data.get("replicas", 1)),
        divisions=DivisionChoices(**data["divisions"]) if "divisions" in data else choices_of(model),
    )
    return Kept(
        model=model,
        cluster=cluster_of(data["cluster"]),
        run=Run(int(data["num_micro_batches"]), data["schedule"]),
        batch=int(data["batch"]),
        rules=rules,
        models=(latency, communication),
        memory_margin=data.get("memory_margin"),
    )


def _meshes(kept: Kept) -> list[Mesh]:
    """Returns the meshes that a search on the plan's cluster asks for, as far as they were solved already."""
    rules = dataclasses.replace(kept.rules, offload="none")  # it changes no mesh
    space = rules.space(kept.cluster, kept.batch // kept.run.num_micro_batches)
    meshes = dict.fromkeys(solved_for(config) for row in space.configs for config in row if config is not None)
    solved = kept.model.sharding.solved if isinstance(kept.model.sharding, ModelSharding) else None
    return [mesh for mesh in meshes if mesh in solved.meshes] if isinstance(solved, KeptLayers) else [*meshes]


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """Returns a cluster as JSON data, in which hosts refer to devices and links by number."""
    devices: dict[Device, int] = {}
    links: dict[Link, int] = {}
    return {
        **_fields(cluster),
        "media": dict(cluster.media),
        "reduction_servers": [_fields(server) for server in cluster.reduction_servers],
        "hosts": [
            {
                **_fields(host),
                "device": devices.setdefault(host.device, len(devices)),
                "memory": None if host.memory is None else dataclasses.asdict(host.memory),
            }
            for host in cluster.hosts
        ],
        "matrix": [[links.setdefault(link, len(links)) for link in row] for row in cluster.links],
        "devices": [dataclasses.asdict(device) for device in devices],
        "links": [_fields(link) for link in links],
    }


def cluster_of(data: Mapping[str, Any]) -> Cluster:
    """Returns the cluster that JSON data made by `cluster_data` describe."""
    devices = [object_of(Device, device) for device in data["devices"]]
    links = [object_of(Link, link) for link in data["links"]]
    hosts = (
        Host(
            **{
                **host,
                "device": devices[host["device"]],
                "memory": host.get("memory") and object_of(HostMemory, host["memory"]),
            }
        )
        for host in data["hosts"]
    )
    rest = {name: value for name, value in data.items() if name not in ("devices", "matrix")}
    return Cluster(
        **rest
        | {
            "hosts": tuple(hosts),
            "links": tuple(tuple(links[n] for n in row) for row in data["matrix"]),
            "reduction_servers": tuple(ReductionServer(**server) for server in data.get("reduction_servers", ())),
        }
    )


def _fields(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
