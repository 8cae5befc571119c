"""Plans as JSON files."""

from __future__ import annotations

import os
import pathlib
from typing import Any

from alpa_dejavu.problem import Plan

__all__ = ["VERSION", "plan_data", "read_plan", "write_plan"]

VERSION = 1


def plan_data(plan: Plan) -> dict[str, Any]:
    """The plan as what JSON has: objects, lists, text and numbers."""
    raise NotImplementedError(f"{plan.model}: plan files aren't written yet")


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> pathlib.Path:
    """Writes the file whole, or not at all."""
    raise NotImplementedError(f"{path}: plan files aren't written yet")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Reads a plan and checks it.

    Raises:
        ValueError: what is wrong with the file, where, and what would be right.
    """
    raise NotImplementedError(f"{path}: plan files aren't read yet")
