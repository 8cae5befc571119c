"""Comparisons of clusters as JSON, version 1; `schemas/comparison-1.json` has every key and unit."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from alpa_dejavu.planning.comparison._compare import Comparison
from alpa_dejavu.planning.comparison._orders import MEASURES
from alpa_dejavu.planning.whole_run import WholeRun

__all__ = ["comparison_text"]

_VERSION = 1
_OF_TRAINING = ("seconds", "deviation_s", "device_s", "price")


def comparison_text(found: Comparison) -> str:
    """Returns the JSON text of a comparison."""
    data = dataclasses.asdict(found)
    for cell, data_of_cell in zip(found.cells, data["cells"], strict=True):
        if cell.figures is not None and cell.figures.training is not None:
            data_of_cell["figures"]["training"] = _training(cell.figures.training)
    data["savings"] = [{"name": one.name, "flags": one.flags} for one in found.savings]
    data["changes"] = [dataclasses.asdict(one) for measure in MEASURES for one in found.changes(measure)]
    return json.dumps({"version": _VERSION, **data}, indent=1) + "\n"


def _training(run: WholeRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in _OF_TRAINING}
