"""Plans for inference as JSON files, version 1; `schemas/serving-1.json` has every key and unit."""

from __future__ import annotations

import json
import os
import pathlib
from typing import Annotated, Any, Literal

from alpa_dejavu._util.dataclass_format import data_of, object_of, typed_dict_of
from alpa_dejavu._util.format_fields import WHOLE, said
from alpa_dejavu._util.json_file import CheckedFile, read_checked, write_whole
from alpa_dejavu.planning.inference.serving_plan import ServingPlan

__all__ = ["read_serving_plan", "serving_format", "serving_text", "write_serving_plan"]

_VERSION = 1
_VERSION_KEY = Annotated[Literal[1], said("1, the version of plans for inference that this release reads"), WHOLE]
_REMEDY = "`alpa-dejavu plan --inference` writes such files, and schemas/serving-1.json says what each key may be"


def serving_format() -> Any:
    """Returns the `TypedDict` of the data of a plan for inference: every key, and what it must be."""
    return typed_dict_of(ServingPlan, {"version": _VERSION_KEY})


def serving_text(plan: ServingPlan) -> str:
    """Returns the JSON text of a plan for inference."""
    return json.dumps({"version": _VERSION, **data_of(plan)}, indent=1) + "\n"


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
    file: CheckedFile[dict[str, Any]] = read_checked(pathlib.Path(path), serving_format(), _REMEDY)
    return object_of(ServingPlan, file.data)
