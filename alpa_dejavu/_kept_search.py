"""The best plan from what was kept of another: priced on a cluster that may have changed, and searched again."""

from __future__ import annotations

import dataclasses
import os
from typing import final

from alpa_dejavu._finished import finished_plan
from alpa_dejavu._kinds import kinds_of
from alpa_dejavu.calibration import Calibration, Prices, prices
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.cost_table import CostTable, cost_table
from alpa_dejavu.kept import Kept
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory_margin import COUNTED
from alpa_dejavu.moves import Settler, layer_state
from alpa_dejavu.problem import Cluster, MeshConfig, Model, Plan, SearchSpace
from alpa_dejavu.search import Candidate, neighbours, proposed, simulated
from alpa_dejavu.slicing import Slicer
from alpa_dejavu.space import search_space

__all__ = ["KeptCosts", "best_candidate", "following_plan", "kept_costs", "kept_prices"]

_FEW = 1024
"""Layers times devices up to which other numbers of stages are simulated too; for more that takes too long."""
_COMMUNICATION = {"AlphaBeta": "alpha-beta", "Free": "free", "Links": "links"}


@final
@dataclasses.dataclass(frozen=True, eq=False)
class KeptCosts:
    """A cost table with its space; of so many logical meshes, planning never found out how layers are divided."""

    table: CostTable
    space: SearchSpace
    missing: int


def kept_prices(
    plan: Plan,
    kept: Kept,
    cluster: Cluster | None = None,
    latency: str | LatencyModel = "auto",
    communication: str | CommunicationModel = "auto",
    calibration: str | os.PathLike[str] | Calibration | None = None,
) -> Prices:
    """What a plan was priced by, on its cluster (None) or on another one.

    Raises:
        ValueError: what is kept is of another plan, or was priced by other models than these.
    """
    differences = kept.differences(plan)
    if differences:
        raise ValueError(f"what is kept is of another plan: {'; '.join(differences)}; plan once more, and keep that")
    if communication == "auto" and calibration is None:
        communication = _COMMUNICATION.get(kept.models[1], communication)
    given = prices(cluster or kept.cluster, calibration, latency, communication)
    models = given.models.names
    if models != kept.models:
        raise ValueError(
            f"the plan was priced by {' and '.join(kept.models)}, not by {' and '.join(models)}; give the calibration "
            "or the models that it was made with"
        )
    # What is kept of a cluster has its calibration in it.
    return given if cluster is not None else dataclasses.replace(given, cluster=kept.cluster)


def kept_costs(kept: Kept, given: Prices) -> KeptCosts:
    """The costs of what is kept, on the cluster of the prices."""
    micro_batch = kept.batch // kept.run.num_micro_batches
    whole = search_space(given.cluster, micro_batch, kept.submeshes, kept.remat, kept.zero, kept.imbalance)
    space, missing = _known(whole, kept.model)
    table = cost_table(kept.model, given.cluster, space, kept.run, given.models, COUNTED)
    return KeptCosts(table, space, missing)


def best_candidate(kept: Kept, costs: KeptCosts, cluster: Cluster, search: Slicer) -> Candidate | None:
    """The best plan by some costs, simulated; None if nothing fits."""
    found = proposed(kept.model, costs.table, cluster, costs.space, kept.run, search)
    if found is None:
        return None
    best = simulated(found, cluster)
    if kept.model.num_layers * cluster.num_devices <= _FEW:
        best = min([best, *neighbours(best, cluster, search)], key=lambda one: one.step_s)
    return best


def following_plan(candidate: Candidate, before: Plan, cluster: Cluster) -> Plan:
    """The plan that a candidate is: of the same model and batch, on the hosts that have most of what it needs."""
    made = finished_plan(
        candidate.slicing.stages, candidate.table, cluster, candidate.space, candidate.run, step_s=candidate.step_s,
        lower_bound_s=candidate.slicing.lower_bound_s, planning_s={}, model=before.model, batch=before.batch,
    )  # fmt: skip
    made = dataclasses.replace(made, layer_option=before.layer_option)
    if any(kinds_of(cluster)):
        return made
    devices = {host.name: host.num_devices for host in cluster.hosts}
    settler = Settler(made.stages, before.stages, devices, layer_state(candidate.model))
    return dataclasses.replace(made, stages=settler.settled(made.stages, ()))


def _known(space: SearchSpace, model: Model) -> tuple[SearchSpace, int]:
    """The configs whose sharding is kept, and how many aren't."""
    knows = getattr(getattr(model.sharding, "solved", None), "knows", None)
    if knows is None:
        return space, 0

    def chosen(config: MeshConfig | None) -> MeshConfig | None:
        return config if config is None or knows(config) else None

    configs = tuple(tuple(map(chosen, row)) for row in space.configs)
    meshes = [
        {config.shape for config in row if config is not None} for row in (sum(space.configs, ()), sum(configs, ()))
    ]
    return dataclasses.replace(space, configs=configs), len(meshes[0] - meshes[1])
