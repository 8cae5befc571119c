"""The formats of files as JSON Schema: `python -m alpa_dejavu.cli._schemas` writes them from the declared types."""

from __future__ import annotations

import json
import pathlib

FOLDER = pathlib.Path(__file__).parents[1] / "schemas"


def schema_texts() -> dict[str, str]:
    """Returns the JSON Schema of each of the package's file formats, as text, by the name of the schema's file."""
    from alpa_dejavu._util.format_check import json_schema
    from alpa_dejavu.calibration import calibration_format
    from alpa_dejavu.calibration.database import DatabaseData
    from alpa_dejavu.clusters.formats import ClusterData, MachineData
    from alpa_dejavu.planning.given.comparison import comparison_format
    from alpa_dejavu.planning.inference.serving_plan import serving_format
    from alpa_dejavu.plans.plan_file import plan_format
    from alpa_dejavu.playground.scenarios.runs_file import RunsData, ScenarioData
    from alpa_dejavu.training.initialization.result_file import ResultData

    formats: dict[str, tuple[str, type[object]]] = {
        "calibration-1": ("A calibration", calibration_format()),
        "cluster-1": ("A cluster", ClusterData),
        "comparison-1": ("A comparison of clusters", comparison_format()),
        "database-1": ("A converted profiling database", DatabaseData),
        "initialization-1": ("A result of parallel_initialize", ResultData),
        "machine-1": ("A machine", MachineData),
        "plan-1": ("A plan", plan_format()),
        "runs-1": ("The runs of a scenario", RunsData),
        "scenario-1": ("A scenario of the playground", ScenarioData),
        "serving-1": ("A plan for inference", serving_format()),
    }
    texts = {}
    for name, (title, kind) in formats.items():
        head = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"{title} of alpa-dejavu, version {name[-1]}",
        }
        texts[f"{name}.json"] = json.dumps(head | json_schema(kind), indent=1) + "\n"
    return texts


if __name__ == "__main__":
    for _name, _text in schema_texts().items():
        (FOLDER / _name).write_text(_text, encoding="utf-8")
