"""Seconds of stages through Alpa on CPU devices, predicted before and after `alpa-dejavu calibrate`, and measured.

    python benchmarks/calibrated_stages.py --json calibrated_stages.json

Of each job a few plans are drawn by a seed before anything is predicted. Both predictions are of the same plans, by the
same models of latency and communication; what differs are the figures of the device and of the link. Stage seconds are
those of a micro-batch, forward and backward, with what the worker does for it besides. Devices compute as those of
`measured_plans.py` do, while they are calibrated too. Each plan is measured twice, the second time when all plans of
the job were; the repeatability is the mean difference of a stage's two measurements. The regret is that of the plan
with the least prediction, among the plans that were measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import operator
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

from tqdm import tqdm

from _measured_jobs import JOBS, Job, drawn, every_plan, label
from _measured_runs import ENVIRONMENT
from alpa_dejavu.alpa import connection, profile
from alpa_dejavu.alpa.local_cluster import local_cluster
from alpa_dejavu.alpa.ray_bench import ray_bench
from alpa_dejavu.calibration import Calibration, read_calibration, write_calibration
from alpa_dejavu.calibration.calibrate import calibrate, identity
from alpa_dejavu.calibration.measurements import Measurements
from alpa_dejavu.problem import Cluster, Plan
from harness import Figure, Results, Table, at_least, options

JOB_NAMES = ("mlp", "gpt", "bert", "convolutions")
WHEN = ("before", "after")
MOST, REPEATED = 0.08, 1.3


COLUMNS = {
    "job": "{job}",
    "stages": "{summary[stages]}",
    "repeatability": "{summary[repeatability]:.1%}",
    **{when: f"{{summary[{when}][mape]:.1%}}, bias {{summary[{when}][bias]:+.1%}}" for when in WHEN},
    **{f"regret {when}": f"{{regret[{when}]:.1%}}" for when in WHEN},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Calibrates, measures, prints and writes."""
    parser = options(__doc__, json="calibrated_stages.json")
    parser.add_argument("--calibration", type=Path, help="taken if it is there, else written (default: neither)")
    parser.add_argument("--budget", type=float, default=150.0, help="of calibrate, in seconds (default: %(default)s)")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOB_NAMES), help="default: four")
    parser.add_argument("--plans", type=at_least(1), default=5, help="of a job (default: %(default)s)")
    parser.add_argument("--micro-batches", type=at_least(1), default=4)
    parser.add_argument("--steps", type=at_least(1), default=6, help="of a plan (default: %(default)s)")
    parser.add_argument("--devices", type=at_least(1), default=min(2, os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    result = Results(given.json, jobs={}, settings={**vars(given), "environment": ENVIRONMENT})
    with local_cluster(devices=given.devices):
        cluster, found = _calibrated(given, result)
        for name in given.jobs:
            job = dataclasses.replace(JOBS[name], counts=(given.micro_batches,))
            result["jobs"][name] = _job(job, cluster, found, given)
            result["all"] = _summary([stage for one in result["jobs"].values() for stage in one["stages"]])
            result.write()
    rows = [{"job": name, **one} for name, one in result["jobs"].items()]
    table = Table.of([*rows, {"job": "all", "summary": result["all"]}], COLUMNS)
    return result.shown(table, *found.missing, figures=_figures(result["all"]))


def _figures(found: dict[str, Any]) -> list[Figure]:
    before, after = (found[when]["mape"] for when in WHEN)
    most = max(MOST, REPEATED * found["repeatability"])
    what, said = "mean error after calibrate", f"{after:.1%}"
    aim = f"at most {MOST:.0%}, or {REPEATED} times the repeatability, {most:.1%}"
    return [
        Figure("stages", what, aim, said, after <= most),
        Figure("stages", what, f"at most that before, {before:.1%}", said, after <= before),
    ]


def _calibrated(arguments: argparse.Namespace, result: dict[str, Any]) -> tuple[Cluster, Calibration]:
    """The cluster as it is known without a calibration, and one of it."""
    cluster, bench = ray_bench()
    if arguments.calibration is not None and arguments.calibration.exists():
        return cluster, read_calibration(arguments.calibration)
    with tempfile.TemporaryDirectory() as folder, tqdm(total=0, bar_format="{desc}") as bar:
        started = time.perf_counter()
        path = Path(folder) / "measurements.jsonl"
        measurements = Measurements(path, identity(cluster), resume=False)
        found = calibrate(cluster, bench, measurements, arguments.budget, "this machine", bar.set_description_str)
    result["calibrate_s"], result["measurements"] = time.perf_counter() - started, len(measurements)
    result["fits"] = [dataclasses.asdict(fit) for fit in found.fits]
    result["missing"] = list(found.missing)
    result["devices"] = {name: dataclasses.asdict(device) for name, device in found.devices.items()}
    if arguments.calibration is not None:
        write_calibration(found, arguments.calibration)
    return cluster, found


def _job(job: Job, cluster: Cluster, found: Calibration, arguments: argparse.Namespace) -> dict[str, Any]:
    before, after = every_plan(job, cluster), every_plan(job, found.applied_to(cluster))
    later = {label(plan): plan for plan in after}
    stages, plans = [], []
    listed = drawn(before, arguments.plans, arguments.seed)
    runs = [_measured(plan, job, arguments.steps) for plan in tqdm([*listed, *listed], desc=job.name, unit="plan")]
    for plan, measured, again in zip(listed, runs[: len(listed)], runs[len(listed) :], strict=True):
        other = later[label(plan)]
        seconds = {"measured_s": measured.step_s, "before_s": plan.step_s, "after_s": other.step_s}
        plans.append({"plan": label(plan), **seconds})
        for n, (times, repeated) in enumerate(zip(measured.stages, again.stages, strict=True)):
            stages.append(
                {
                    "plan": label(plan),
                    "stage": n,
                    "measured_s": times.forward_s + times.backward_s,
                    "again_s": repeated.forward_s + repeated.backward_s,
                    "computing_s": sum(measured.computing_s[n]),
                    "before_s": _stage_s(plan, n),
                    "after_s": _stage_s(other, n),
                }
            )
    best = min(plan["measured_s"] for plan in plans)
    chosen = {when: min(plans, key=operator.itemgetter(f"{when}_s")) for when in WHEN}
    regret = {when: chosen[when]["measured_s"] / best - 1 for when in WHEN}
    return {"summary": _summary(stages), "regret": regret, "stages": stages, "plans": plans}


def _stage_s(plan: Plan, number: int) -> float:
    stage = plan.stages[number]
    return stage.forward_s + stage.backward_s


def _measured(plan: Plan, job: Job, steps: int) -> Any:
    from alpa.api import clear_executable_cache

    with connection(plan):
        try:
            return profile(plan, (), steps, job.model)
        finally:
            clear_executable_cache()


def _summary(stages: list[dict[str, Any]]) -> dict[str, Any]:
    """Errors of stages as fractions."""
    again = [abs(stage["again_s"] / stage["measured_s"] - 1) for stage in stages]
    found: dict[str, Any] = {"stages": len(stages), "repeatability": statistics.fmean(again)}
    for when in WHEN:
        errors = [stage[f"{when}_s"] / stage["measured_s"] - 1 for stage in stages]
        found[when] = {"mape": statistics.fmean(map(abs, errors)), "bias": statistics.fmean(errors)}
    return found


if __name__ == "__main__":
    raise SystemExit(main())
