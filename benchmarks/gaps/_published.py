"""Plans that an earlier search made for Alpa's published cases, priced afresh beside new ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from alpa_dejavu import layers, sharding
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.costs.memory_margin import DEFAULT_MARGIN
from alpa_dejavu.planning import GivenStage, estimate, plan
from alpa_dejavu.planning.model_cache import ModelCache
from alpa_dejavu.problem import MeshConfig, NoPlanError, Run, Submesh
from gaps._pairs import Pair

FILE = Path(__file__).with_name("old_plans.json")
PER_HOST = 8


def old_plans() -> list[dict[str, Any]]:
    """The earlier plans, as `old_plans.json` says of itself."""
    plans: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["plans"]
    return plans


def compared(old: dict[str, Any], machine: str = "p3.16xlarge", cache: ModelCache | None = None) -> dict[str, Any]:
    """The steps of an earlier plan and of a new one by today's prices, and whether the earlier one fits by them."""
    cluster = named_cluster(machine, max(old["gpus"] // PER_HOST, 1), min(old["gpus"], PER_HOST))
    task = Pair(old["model"], old["batch"], machine, len(cluster.hosts)).task(cluster, cache)
    try:
        made = plan(task, annotations=())
    except (NoPlanError, ValueError) as error:
        return {"new_s": math.inf, "error": str(error)}
    step = layers.trace(old["model"], batch=old["batch"] // old["micro_batches"])
    model = sharding.model_of_step(step, old["layers"])
    stages = [_given(stage) for stage in old["stages"]]
    try:
        priced = estimate(
            model,
            cluster,
            Run(old["micro_batches"]),
            stages,
            name=str(old["model"]),
            batch=old["batch"],
            calibration="none",
        )
    except NoPlanError as error:
        return {"new_s": made.plan.step_s, "error": str(error)}
    share = max(stage.memory_bytes / stage.memory_limit_bytes for stage in priced.plan.stages)
    return {
        "old_s": priced.plan.step_s,
        "new_s": made.plan.step_s,
        "old_memory_share": share,
        "old_fits": share <= 1 - DEFAULT_MARGIN,
    }


def _given(stage: dict[str, Any]) -> GivenStage:
    across, along = stage["logical_mesh"]
    config = MeshConfig((across, along), across, along, stage["options"], remat=stage["remat"], zero=stage["zero"])
    first, last = stage["layers"]
    return GivenStage(first, last, Submesh(*stage["submesh"]), config, tuple(stage["hosts"]))
