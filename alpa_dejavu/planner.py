"""The way through: layers and a cluster in, a plan out."""

from __future__ import annotations

import dataclasses
import time

from alpa_dejavu._diagnosis import no_plan
from alpa_dejavu._finished import finished_plan
from alpa_dejavu._unused import unused_hosts
from alpa_dejavu.communication import CommunicationModel
from alpa_dejavu.contingency import with_contingencies
from alpa_dejavu.cost_models import CostModels
from alpa_dejavu.cost_table import cost_table
from alpa_dejavu.latency import LatencyModel
from alpa_dejavu.memory_margin import DEFAULT_RISK, MemoryMargin, MemoryResiduals, with_memory_note
from alpa_dejavu.model_planner import plan_model
from alpa_dejavu.problem import Cluster, Model, Plan, Run, SearchSpace
from alpa_dejavu.search import Candidate, beside, proposed, timed
from alpa_dejavu.slicing import Slicer, slicer
from alpa_dejavu.uncertainty import confidence

__all__ = ["plan", "plan_model"]


def plan(
    model: Model,
    cluster: Cluster,
    space: SearchSpace,
    run: Run,
    *,
    slicing: str | Slicer = "dynamic",
    latency: str | LatencyModel = "analytic",
    communication: str | CommunicationModel = "alpha-beta",
    risk: float = DEFAULT_RISK,
    memory: MemoryResiduals | None = None,
) -> Plan:
    """The best plan that the slicer finds.

    Raises:
        NoPlanError: no plan fits; says what is missing where, and what would help.
        ValueError: an unknown name, or a risk that isn't above 0 and below 0.5.
    """
    started = time.perf_counter()
    margin, search = MemoryMargin(risk, memory), slicer(slicing)
    models = CostModels.named(latency, communication)
    table = cost_table(model, cluster, space, run, models, margin)
    costed = time.perf_counter()
    chosen = proposed(model, table, cluster, space, run, search)
    if chosen is None:
        raise no_plan(model, cluster, space, run, table, search)
    chosen = timed(chosen, cluster)
    found = time.perf_counter()
    sure = confidence([chosen, *(timed(other, cluster) for other in beside(chosen, cluster, search))], cluster)
    sure_s = time.perf_counter()
    made = finished_plan(
        chosen.slicing.stages,
        table,
        cluster,
        space,
        run,
        step_s=chosen.step_s if cluster.shared or chosen.timeline is not None else _step_s(chosen, cluster, run),
        lower_bound_s=chosen.slicing.lower_bound_s,
        planning_s={
            "cost table": costed - started,
            "slicing": found - costed,
            "confidence": sure_s - found,
        },
    )
    notes = unused_hosts(chosen, cluster, search)
    made = with_contingencies(dataclasses.replace(made, confidence=sure, notes=notes), chosen, cluster, search)
    made = dataclasses.replace(made, planning_s={**made.planning_s, "contingencies": time.perf_counter() - sure_s})
    return with_memory_note(made, margin)


def _step_s(chosen: Candidate, cluster: Cluster, run: Run) -> float:
    """Seconds of a whole step. Inference's objective is another one than its time."""
    table, stages = chosen.table, chosen.slicing.stages
    costs = table.slicing_problem(cluster, chosen.space, run).stage_costs_s(stages)
    once = sum(float(table.per_step_s[stage.entry]) for stage in stages)
    return sum(costs) + (run.num_micro_batches - 1) * max(costs) + once
