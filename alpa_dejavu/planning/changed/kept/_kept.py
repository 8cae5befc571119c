"""The record of what a plan was made from."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, final

from alpa_dejavu.clusters.host_classes import summary_of
from alpa_dejavu.problem import Cluster, ClusterSummary, MeshConfig, Model, Plan, PricedBy, Run

if TYPE_CHECKING:
    from alpa_dejavu.planning.result import PlanningResult

DEFAULT_MODELS = ("AnalyticLatency", "AlphaBeta")


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Kept:
    """A record, kept beside a plan, of all that planning again needs, but for the latency and communication models.

    Attributes:
        model: the model's layers, for a micro-batch of the run, and how they are sharded on the logical meshes that
            planning looked at.
        cluster: the cluster that the plan is for.
        run: the plan's number of micro-batches, and its schedule.
        batch: the samples of a step.
        remat: the choices of rematerialisation that stages have, "none" or "layer" or both.
        zero: the ZeRO levels that stages may have, among 0, 2 and 3.
        submeshes: the kind of submeshes that stages may have: "power_of_two", "small_power_of_two" or "all".
        imbalance: Alpa's `stage_imbalance_tolerance`; infinite allows everything.
        models: the latency and the communication model that priced the plan, by the names of their classes.
        memory_margin: the share of the memory that the plan left free; None: the hosts' own.
        offload: where stages may offload what they keep: "none", "cpu", "nvme" or "auto".
        replicas: the least number of data-parallel replicas of each stage.
    """

    model: Model
    cluster: Cluster
    run: Run
    batch: int
    remat: tuple[str, ...]
    zero: tuple[int, ...]
    submeshes: str = "power_of_two"
    imbalance: float = float("inf")
    models: tuple[str, str] = DEFAULT_MODELS
    memory_margin: float | None = None
    offload: str = "none"
    replicas: int = 1

    @classmethod
    def of(cls, planned: PlanningResult) -> Kept:
        """Returns the record, for planning again, of what a plan that was just made follows from.

        Raises:
            ValueError: the plan's batch isn't known, or the costs of its stages aren't.
        """
        costs, batch = planned.table.stage_costs, planned.plan.batch
        priced_by = planned.plan.priced_by or PricedBy()
        if costs is None or batch is None:
            raise ValueError("what the plan was made from isn't known: its batch, or its costs")
        configs = [config for row in planned.space.configs for config in row if config is not None]
        return cls(
            model=planned.model,
            cluster=planned.cluster,
            run=planned.run,
            batch=batch,
            remat=tuple(dict.fromkeys(config.remat for config in configs)),
            zero=tuple(sorted({config.zero for config in configs})),
            imbalance=planned.space.allowed_imbalance,
            models=costs.models.names,
            memory_margin=planned.table.margin.free_share,
            offload=priced_by.offload,
            replicas=priced_by.replicas,
        )

    def knows(self, config: MeshConfig) -> bool:
        """Returns whether this record says how layers are sharded on a config's logical mesh; True for any mesh if it
        has no sharding at all.
        """
        known = getattr(getattr(self.model.sharding, "solved", None), "knows", None)
        return known is None or bool(known(config))

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
            here = summary_of(self.cluster)
            pairs["hosts"] = _host_names(here), _host_names(plan.hardware)
            pairs["hardware"] = here.text, plan.hardware.text
        return [f"{name} is {ours!r}, not {theirs!r}" for name, (ours, theirs) in pairs.items() if ours != theirs]


def _host_names(hardware: ClusterSummary) -> str:
    return " ".join(host.name for host in hardware.hosts)
