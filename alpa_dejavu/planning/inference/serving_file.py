"""Plans for inference as JSON files, version 1; `schemas/serving-1.json` has every key and unit."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from typing import Any

from alpa_dejavu._util.json_file import read_checked, write_whole
from alpa_dejavu.planning.inference.serving_plan import Phase, ServingMemory, ServingPlan

__all__ = ["read_serving_plan", "serving_text", "write_serving_plan"]

_VERSION = 1
_REMEDY = "`alpa-dejavu plan --inference` writes such files, and schemas/serving-1.json says what each key may be"


def serving_text(plan: ServingPlan) -> str:
    """Returns the JSON text of a plan for inference."""
    return json.dumps({"version": _VERSION, **dataclasses.asdict(plan)}, indent=1) + "\n"


def write_serving_plan(plan: ServingPlan, path: str | os.PathLike[str]) -> None:
    """Writes a plan for inference to a file.

    Raises:
        ValueError: the file can't be written; says why.
    """
    write_whole(pathlib.Path(path), serving_text(plan))


def read_serving_plan(path: str | os.PathLike[str]) -> ServingPlan:
    """Returns the plan for inference that a file has.

    Raises:
        ValueError: the file can't be read, or isn't as the format asks; says what is wrong where.
    """
    from alpa_dejavu.planning.inference.serving_format import ServingData

    data: dict[str, Any] = dict(read_checked(pathlib.Path(path), ServingData, _REMEDY).data)
    del data["version"]
    for field in dataclasses.fields(ServingPlan):
        if field.type == "int":
            data[field.name] = int(data[field.name])
    data |= {name: _phase(data[name]) for name in ("first_token", "next_token")}
    data |= {"memory": ServingMemory(**data["memory"]), "notes": tuple(data["notes"])}
    return ServingPlan(**data)


def _phase(data: dict[str, Any]) -> Phase:
    low, high = data["interval_s"]
    return Phase(**{**data, "interval_s": (low, high)})
