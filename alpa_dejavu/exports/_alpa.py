"""Alpa as a target: a script that makes its `PipeshardParallel`."""

from __future__ import annotations

import dataclasses
from typing import final

from alpa_dejavu.exports._target import Files, Writer
from alpa_dejavu.exports.alpa_code import alpa_code
from alpa_dejavu.layers.models import Transformer
from alpa_dejavu.problem import Plan

__all__ = ["AlpaWriter"]


@final
@dataclasses.dataclass(frozen=True)
class AlpaWriter(Writer):
    """A writer of the lines of Python that run a plan with Alpa."""

    def write(self, plan: Plan, model: Transformer | None) -> Files:
        """Returns the script; Alpa doesn't need to know the model's sizes."""
        return {"alpa_plan.py": alpa_code(plan)}
