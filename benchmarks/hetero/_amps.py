"""AMP's plan for a case: its own choice of pipelines and micro-batches, on the hosts that it puts them on."""

from __future__ import annotations

import dataclasses

from alpa_dejavu.planning.strategies import as_planned, strategy
from alpa_dejavu.problem import Cluster, Model, Plan
from hetero._cases import Case

__all__ = ["amps_plan"]


def amps_plan(case: Case, model: Model, cluster: Cluster) -> Plan:
    """What AMP chooses, knowing the links and the hosts.

    Args:
        case: whose job it is.
        model: its layers, for a micro-batch of the case.
        cluster: its hosts and links.
    """
    job = case.job
    samples = job.batch // case.micro_batches
    made = strategy("amp").plan(model, cluster, batch=job.batch, samples=samples)
    plan = as_planned(made, model, cluster, samples=samples, name=job.name).plan
    return dataclasses.replace(plan, cluster=case.name)
