"""The least changes by which a given plan that doesn't fit into memory would, each of them tried.

In: a plan, and the estimator of plans of its model on its cluster. Out: texts.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from alpa_dejavu.costs.memory_margin import UNMEASURED
from alpa_dejavu.planning.given.figures import batch_text
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.planning.search.runtimes import hindrances, limits_of
from alpa_dejavu.plans.stage_rows import kept_text
from alpa_dejavu.plans.table import lacking
from alpa_dejavu.problem import REMAT, Cluster, NoPlanError, Plan, PricedBy

__all__ = ["fits", "what_fits"]

_KINDS = ("remat", "zero", "micro-batch")


def fits(plan: Plan, cluster: Cluster) -> bool:
    """Returns whether a plan fits into memory and leaves the share of it free that it was searched with; where that
    isn't known, the share of the cluster's hosts.
    """
    margin = plan.priced_by and plan.priced_by.margin
    return not lacking(plan, max(map(UNMEASURED.free_share_of, cluster.hosts)) if margin is None else margin)


def what_fits(plan: Plan, estimator: PlanEstimator) -> str:
    """Returns the least changes by which a plan fits into its devices' memory, each by itself, else all of them
    together; or that none of these is enough. Each was tried, but for what the plan's framework can't run.
    """
    hindered = _whys(plan)

    def estimated(changed: Plan) -> Plan | None:
        if _whys(changed) - hindered:
            return None
        try:
            return estimator.estimate(changed).plan
        except (NoPlanError, ValueError):  # a framework, or devices of one, may not have it
            return None

    def is_enough(priced: Plan | None) -> bool:
        return priced is not None and fits(priced, estimator.cluster)

    tries = ((changed for changed in _changed(plan, kind) if is_enough(estimated(changed))) for kind in _KINDS)
    enough = [_named(plan, changed) for least in tries for changed in itertools.islice(least, 1)]
    most = plan
    for kind in () if enough else _KINDS:
        for changed in _changed(most, kind):
            priced = estimated(changed)
            if is_enough(priced):
                return f"tried, and enough: {_named(plan, changed)}"
            most = changed if priced else most
    not_enough = "tried, and not enough: recompute, ZeRO and smaller micro-batches; `alpa-dejavu plan` tries more"
    return f"tried, and enough: {' or '.join(enough)}" if enough else not_enough


def _whys(plan: Plan) -> set[str]:
    """Returns why the framework that a plan is priced for can't run it; none where its limits aren't known."""
    by = plan.priced_by or PricedBy()
    framework = by.runs_on or by.runtime
    limits = limits_of(framework)
    # Whether Alpa runs it is told by what it was priced with, and hinders no other framework.
    apart = dataclasses.replace(plan, runs_on_alpa=True)
    return set() if limits is None else {hindrance.why for hindrance in hindrances(apart, framework, limits)}


def _changed(plan: Plan, kind: str) -> Iterator[Plan]:
    """Yields plans with one thing changed, the least change first."""
    if kind == "micro-batch":
        replicas = max(stage.data_parallel // stage.context_parallel for stage in plan.stages)
        count = plan.num_micro_batches
        while plan.batch is not None and plan.batch % (2 * count * replicas) == 0:
            count *= 2
            yield dataclasses.replace(plan, num_micro_batches=count)
        return
    levels: Sequence[Any] = REMAT if kind == "remat" else (0, 2, 3)
    least = min(levels.index(getattr(stage, kind)) for stage in plan.stages)
    for level in levels[least + 1 :]:
        more: dict[str, Any] = {kind: level, **({"remat_share": 1.0} if kind == "remat" else {})}
        stages = tuple(
            stage if levels.index(getattr(stage, kind)) > levels.index(level)
            else dataclasses.replace(stage, **more)
            for stage in plan.stages
        )  # fmt: skip
        yield dataclasses.replace(plan, stages=stages)


def _named(plan: Plan, changed: Plan) -> str:
    own, other = (dict.fromkeys(", ".join(map(kept_text, either.stages)).split(", ")) for either in (plan, changed))
    parts = [text for text in other if text not in own]
    if changed.num_micro_batches != plan.num_micro_batches:
        parts.append(batch_text(changed))
    return " with ".join(parts)
