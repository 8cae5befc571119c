"""How long planning takes, by its steps, and how that grows with the model and the cluster.

    python benchmarks/test_planning_time.py [--json FILE] [--models NAME ...] [--gpus N ...] [--repeat N]
        [--calibration NAME] [--schedules NAME ...]

Each case is planned in a process of its own, from its start to the written plan, with an empty cache, so that imports
and tracing are paid; then again with what that has kept of the model, and so on one host more. "cost table" is the sum
over all tables that a search makes, one for each number of micro-batches and of layers that it tries. By default the
package's models of kernels and collectives fill them, with `--calibration none` data sheets do. The seconds are wall
time of this machine; Alpa's own search for GPT-39B on 64 GPUs took 2393 s on them.

References:
    Zheng et al., Alpa, OSDI 2022, table 5: 2393 s.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from alpa_dejavu._util.units import seconds
from harness import Results, Table, at_least
from harness import options as parsed_options

CASES = (
    ("gpt-1.3b", 1), ("gpt-2.6b", 1), ("gpt-6.7b", 2), ("gpt-15b", 4), ("gpt-39b", 8), ("gpt-39b", 32), ("gpt-76b", 16),
    ("gpt-76b", 128),
)  # fmt: skip
"""Models, and hosts of 8 GPUs each."""
CLUSTER = "p3.16xlarge"
BATCH = 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Plans every case and shows the split; exit status 1 if a case couldn't be planned."""
    parser = parsed_options(__doc__)
    parser.add_argument("--models", nargs="+", choices=sorted({model for model, _ in CASES}), help="only these")
    gpus = sorted({8 * hosts for _, hosts in CASES})
    parser.add_argument("--gpus", nargs="+", type=int, choices=gpus, help="only so many")
    parser.add_argument("--calibration", metavar="NAME|FILE", help="plan with it (default: the package's own models)")
    parser.add_argument("--schedules", nargs="+", default=["1f1b"], help="1f1b, auto, ... (default: 1f1b)")
    parser.add_argument("--repeat", type=at_least(1), default=3, help="runs of each (default: %(default)s)")
    given = parser.parse_args(arguments)
    cases = [
        (model, hosts)
        for model, hosts in CASES
        if model in (given.models or [model]) and 8 * hosts in (given.gpus or [8 * hosts])
    ]
    more = ["--calibration", given.calibration] if given.calibration else []
    asked = [(model, hosts, schedule) for model, hosts in cases for schedule in given.schedules]
    rows = [
        _case(model, hosts, schedule, ["--schedule", schedule, *more], given.repeat)
        for model, hosts, schedule in tqdm(asked, unit="case")
    ]
    results = Results(given.json, cluster=CLUSTER, batch=BATCH, calibration=given.calibration, cases=rows)
    steps = dict.fromkeys(step for row in rows for step in row.get("planning_s", {}))
    columns: dict[str, Any] = {"model": "{model}", "GPUs": "{gpus}", "asked": "{schedule}"}
    columns["whole"] = lambda row: seconds(statistics.median(row["walls_s"]))
    columns |= {"again": "{again_s:seconds}", "a host more": "{host_more_s:seconds}"}
    columns |= {step: f"{{planning_s[{step}]:.2f}}" for step in steps}
    results.shown(Table.of(rows, {**columns, "stages": "{stages}", "found": "{found}", "step": "{step_s:seconds}"}))
    return 0 if all("error" not in row for row in rows) else 1


def _case(model: str, hosts: int, schedule: str, options: Sequence[str], repeat: int) -> dict[str, Any]:
    runs = [_plan(model, hosts, options) for _ in range(repeat)]
    failed = [run for run in runs if "error" in run]
    case: dict[str, Any] = {"model": model, "gpus": 8 * hosts, "schedule": schedule}
    if failed:
        return case | failed[0]
    order = sorted(runs, key=lambda run: float(run["wall_s"]))
    return case | order[len(order) // 2] | {"walls_s": [run["wall_s"] for run in runs]}


def _plan(model: str, hosts: int, options: Sequence[str]) -> dict[str, Any]:
    """One planning with an empty cache, and the seconds of two more with what it has kept."""
    with tempfile.TemporaryDirectory() as directory:
        whole = _run(model, hosts, options, Path(directory))
        again, more = (_run(model, number, options, Path(directory)) for number in (hosts, hosts + 1))
    failed = next((run for run in (whole, again, more) if "error" in run), None)
    return failed or whole | {"again_s": again.get("wall_s"), "host_more_s": more.get("wall_s")}


def _run(model: str, hosts: int, options: Sequence[str], directory: Path) -> dict[str, Any]:
    """One planning from the command line to the written plan, with its cache in a folder."""
    path = directory / "plan.json"
    command = [sys.executable, "-m", "alpa_dejavu", "plan", "--model", model, "--cluster", CLUSTER]
    command += ["--hosts", str(hosts), "--batch", str(BATCH), "--json", str(path), *options]
    environment = os.environ | {"ALPA_DEJAVU_CACHE": str(directory / "cache")}
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    wall = time.perf_counter() - started
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr else f"exit {done.returncode}"}
    plan = json.loads(path.read_text(encoding="utf-8"))
    split = {name: round(float(seconds), 4) for name, seconds in plan["planning_s"].items()}
    found = {"stages": len(plan["stages"]), "found": plan["schedule"], "step_s": plan["iteration_time_s"]}
    return {"wall_s": round(wall, 3), "planning_s": split, **found}


if __name__ == "__main__":
    raise SystemExit(main())
