"""A plan as the lines of Python that run it with Alpa."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alpa_dejavu.problem import Plan, StagePlan

__all__ = ["alpa_code", "alpa_options"]


def alpa_code(plan: Plan) -> str:
    """The text that `alpa-dejavu plan --python` writes; running it makes `method`, a `PipeshardParallel`."""
    raise NotImplementedError(f"{plan.model}: alpa_code isn't written yet")


def alpa_options(stage: StagePlan) -> Mapping[str, Any]:
    """The options of Alpa's auto-sharding pass for a stage, with its ZeRO level said whatever the default is."""
    return dict(stage.options)
