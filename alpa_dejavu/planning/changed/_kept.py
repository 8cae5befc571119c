"""The record of what a plan was made from, and its JSON data, version 1."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._util.dataclass_format import object_of
from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.clusters.space import PLAIN_CHOICES, DivisionChoices, submeshes
from alpa_dejavu.costs.memory_margin import COUNTED
from alpa_dejavu.planning.search.models._model import Data, model_data, model_of
from alpa_dejavu.planning.search.models._sharding import KeptLayers, Mesh, sharding_data, sharding_of
from alpa_dejavu.planning.search.models.model_source import GivenModel, ModelSource, nearest_samples
from alpa_dejavu.planning.search.models.named_model import SizedTransformer
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
    # The same layers for micro-batches of other samples, by these, with their sharding on the meshes looked at.
    others: Mapping[int, Model] = dataclasses.field(default_factory=dict)

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
        remats = REMAT if sized else tuple(dict.fromkeys(config.remat for config in configs))
        rules = SpaceRules(
            submeshes="power_of_two" if looked_at <= set(submeshes(planned.cluster)) else "all",
            # The space of a micro-batch of few samples has less than was asked for.
            remat=priced_by.remat or remats,
            zero=priced_by.zero or ((0, 2, 3) if sized else tuple(sorted({config.zero for config in configs}))),
            imbalance=planned.space.allowed_imbalance,
            offload=priced_by.offload,
            replicas=priced_by.replicas,
            # Of a plan that was given nobody asked for any choices.
            divisions=choices_of(planned.model) if planned.divisions == PLAIN_CHOICES else planned.divisions,
        )
        free_share = None if planned.table.margin is COUNTED else planned.table.margin.free_share
        others = {} if sized else planned.models
        return cls(planned.model, planned.cluster, planned.run, batch, rules, costs.models.names, free_share, others)

    def with_replicas(self, least: int) -> Kept:
        """Returns the same record, but for the least number of replicas of each stage."""
        return dataclasses.replace(self, rules=dataclasses.replace(self.rules, replicas=least))

    @property
    def by_samples(self) -> dict[int, Model]:
        """Returns the model for each micro-batch that it is kept for, by the samples of that, the run's own first."""
        own = self.batch // self.run.num_micro_batches
        return {own: self.model, **{samples: model for samples, model in self.others.items() if samples != own}}

    def source(self, name: str) -> ModelSource:
        """Returns a source of the model, by a name, for which nothing is traced."""
        (own, model), *_ = self.by_samples.items()
        if isinstance(model.sharding, TransformerSharding):
            return SizedTransformer(model.sharding.size, model.sharding.execution, own)
        return GivenModel(model, own, name, self.others)

    def knows(self, config: MeshConfig, micro_batch: int | None = None) -> bool:
        """Returns whether it says how layers are sharded on a config's mesh, for micro-batches of so many samples
        (None: the run's); True if it has no sharding at all.
        """
        models = self.by_samples
        model = self.model if micro_batch is None else models[nearest_samples(models, micro_batch)]
        knows = getattr(getattr(model.sharding, "solved", None), "knows", None)
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
    rules, data = kept.rules, [(samples, *_model_data(kept, model)) for samples, model in kept.by_samples.items()]
    _, model, sharding = data[0]
    others = [{"samples": n, "model": of_other, "sharding": its} for n, of_other, its in data[1:]]
    return {
        **{name: getattr(kept, name) for name in ("batch", "models", "memory_margin")},
        **{name: getattr(rules, name) for name in ("remat", "zero", "submeshes", "offload", "replicas")},
        "num_micro_batches": kept.run.num_micro_batches,
        "schedule": kept.run.schedule,
        "divisions": dataclasses.asdict(rules.divisions),
        "imbalance": None if math.isinf(rules.imbalance) else rules.imbalance,
        "cluster": cluster_data(kept.cluster),
        "model": model,
        "sharding": sharding,
        **({"others": others} if others else {}),
    }


def _model_data(kept: Kept, model: Model) -> tuple[Data, Data | None]:
    sharding = model.sharding
    divided = sharding_data(sharding, _meshes(kept, sharding)) if isinstance(sharding, ModelSharding) else None
    return transformer_data(model) or model_data(model), divided


def kept_of(data: Mapping[str, Any]) -> Kept:
    """Returns the record for planning again that JSON data made by `kept_data` describe."""
    model = _model_of(data)
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
        others={int(other["samples"]): _model_of(other) for other in data.get("others", ())},
    )


def _model_of(data: Mapping[str, Any]) -> Model:
    model = transformer_of(data["model"]) if "transformer" in data["model"] else model_of(data["model"])
    if data["sharding"] is None:
        return model
    return dataclasses.replace(model, sharding=sharding_of(data["sharding"], model))


def _meshes(kept: Kept, sharding: ModelSharding) -> Collection[Mesh]:
    """Returns the meshes that were solved; where these aren't known, those that a search on the cluster asks for."""
    if isinstance(sharding.solved, KeptLayers):
        return sharding.solved.meshes
    rules = dataclasses.replace(kept.rules, offload="none")  # it changes no mesh
    space = rules.space(kept.cluster, kept.batch // kept.run.num_micro_batches)
    return dict.fromkeys(solved_for(config) for row in space.configs for config in row if config is not None)


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
