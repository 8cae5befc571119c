"""Forward and backward passes of twelve small models on a core, predicted by this machine's figures, and measured.

    python benchmarks/cpu_passes.py --json cpu_passes.json

Each pass is compiled by itself, as a stage's is, and runs on all cores at the same time, as in a pipeline's steady
state; its seconds are those of its threads on the CPU. The prediction is the planner's, whose figures come from single
operators. Beside it stands the plain roofline: the same figures without those that only a CPU has, for small products,
images with holes, maxima, what is read against its order in memory, and what no cache holds.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import unittest.mock
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from tqdm import tqdm

from _measured_jobs import JOBS, Job
from alpa_dejavu._util.child_process import child_process
from alpa_dejavu._util.threads import usable_cores
from alpa_dejavu.calibration.operators import both_passes
from alpa_dejavu.clusters._cpu_figures import core_seconds
from alpa_dejavu.clusters.cpu_probe import measured_cpu
from alpa_dejavu.costs.latency import AnalyticLatency
from alpa_dejavu.problem import Device
from alpa_stock_jax.cpu_process import cpu_environment
from harness import Results, Table, at_least, options

COLUMNS = {
    "job": "{job}",
    "pass": "{pass}",
    "measured": "{measured_s:seconds}",
    "predicted": "{predicted_s:seconds}",
    "prediction over measured": lambda row: f"{row['predicted_s'] / row['measured_s']:.2f}",
    "plain roofline": "{roofline_s:seconds}",
    "roofline over measured": lambda row: f"{row['roofline_s'] / row['measured_s']:.2f}",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes."""
    parser = options(__doc__, json="cpu_passes.json")
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS), help="default: all")
    parser.add_argument("--micro-batches", type=at_least(1), default=4, help="of a batch (default: %(default)s)")
    given = parser.parse_args(arguments)
    result = Results(given.json, settings=vars(given), passes=[])
    jobs = [JOBS[name] for name in given.jobs]
    # The process starts as a worker does, and keeps memory that is free.
    with (
        unittest.mock.patch.dict(os.environ, cpu_environment(1, os.environ)),
        child_process(_serve, jobs, given.micro_batches, name="passes", patience_s=5.0) as connection,
    ):
        for _ in tqdm(range(2 * len(jobs)), unit="pass"):
            result["passes"].append(connection.recv())
            result.write()
    rows = result["passes"]
    off = {name: _mean_error(rows, f"{name}_s") for name in ("predicted", "roofline")}
    said = f"mean error of {len(rows)} passes: {off['predicted']:.1%}, by the plain roofline {off['roofline']:.1%}"
    return result.shown(Table.of(rows, COLUMNS), said)


def _mean_error(rows: Sequence[dict[str, Any]], name: str) -> float:
    return statistics.fmean(abs(row[name] / row["measured_s"] - 1) for row in rows)


def _serve(connection: Connection, jobs: Sequence[Job], micro_batches: int) -> None:
    device = measured_cpu(usable_cores())
    for job in jobs:
        for row in _passes(job, micro_batches, device):
            connection.send(row)


def _passes(job: Job, micro_batches: int, device: Device) -> Iterator[dict[str, Any]]:
    step, ((weights, _), data) = job.model(job.batch // micro_batches)
    none: dict[str, Any] = dict.fromkeys((*Device.optional_rates, "small_products", "strided"))
    plain = dataclasses.replace(device, **none)
    for name, one in zip(("forward", "backward"), both_passes(step.loss, weights, data), strict=True):
        yield {
            "job": job.name,
            "pass": name,
            "measured_s": core_seconds(one.compiled(), usable_cores()),
            "predicted_s": AnalyticLatency().predict(one.operators, device).total_s,
            "roofline_s": AnalyticLatency().predict(one.operators, plain).total_s,
        }


if __name__ == "__main__":
    raise SystemExit(main())
