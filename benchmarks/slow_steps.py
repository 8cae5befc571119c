"""Whether `why` names faults put into training runs on purpose, and how a calibration from one trace predicts others.

    python benchmarks/slow_steps.py --python TORCH/bin/python [--only FAULT ...] [--json FILE]

Each run is `traced_gpt.py`: a small GPT in PyTorch on two CPU processes, a core each, with gloo. A fault's true cost is
the median step of its run without a profiler, less that of the same run without the fault; runs with and without take
turns. The slow link is a network namespace of its own, whose loopback device is throttled by `tc`: it needs root.
"""

from __future__ import annotations

import datetime
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from click.testing import CliRunner

from alpa_dejavu._util import units
from alpa_dejavu.calibration.traces import MeasuredStep, median_step
from alpa_dejavu.cli.main import main as command
from alpa_dejavu.cli.traces import traced_steps
from alpa_dejavu.clusters import named_cluster
from alpa_dejavu.planning.given.plan_estimate import PlanEstimator
from alpa_dejavu.planning.given.traced_calibration import calibration_of_trace
from alpa_dejavu.plans.plan_file import read_plan
from alpa_dejavu.report.slow_step import why_slow
from harness import Figure, Results, Table, options

PROGRAM = Path(__file__).with_name("traced_gpt.py")
FAULTS = (
    "one slow rank", "a slow link", "attention that isn't fused", "products in single precision", "loading data",
    "small kernels, bound by the host", "imbalance", "exchanges that don't hide",
)  # fmt: skip
ALSO_RIGHT = {"loading data": {"a gap in which nothing runs"}}
SIZES = {"hidden": 256, "blocks": 4, "heads": 4, "length": 256, "batch": 8, "ranks": 2}
NEIGHBOURS: dict[str, dict[str, Any]] = {
    "the traced step": {}, "twice the batch": {"batch": 16}, "twice as deep": {"blocks": 8},
    "twice as wide": {"hidden": 512, "heads": 8}, "one rank": {"ranks": 1, "batch": 4},
}  # fmt: skip
CHANGED: dict[str, dict[str, Any]] = {
    "attention that isn't fused": {"length": 512, "batch": 4}, "products in single precision": {"dtype": "bfloat16"},
}  # fmt: skip
"""Sizes where a fault costs enough to be measured."""
ROUNDS, LARGE_BYTES = 1, 2**20
THROTTLED = "ip link set lo up && tc qdisc add dev lo root tbf rate 200mbit burst 128kb latency 400ms && exec "
Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = options(__doc__ or "", json="slow_steps.json")
    parser.add_argument("--python", required=True, help="an interpreter that has torch")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT", help="these alone")
    given = parser.parse_args(arguments)
    results = Results(given.json, {"sizes": SIZES, "rounds": ROUNDS})
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(given.python, Path(folder))
        rows = [results.known("faults", fault, _fault, fault, runs) for fault in given.only]
        nearby = [results.known("neighbours", name, _neighbour, name, runs) for name in NEIGHBOURS]
    return results.shown(*_tables(rows, nearby), figures=_figures(rows, nearby))


class Runs:
    """Runs of the program, each in a folder of its own."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder, self.count = python, folder, 0

    def run(self, fault: str = "none", **changed: Any) -> tuple[list[MeasuredStep], float]:
        """Returns the traced steps of a run, and its median step without a profiler."""
        self.count += 1
        folder = self.folder / str(self.count)
        sizes = {**SIZES, **changed}
        line = [self.python, str(PROGRAM), str(folder), "--fault", fault, "--port", str(29600 + self.count)]
        line += [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
        if fault == "a slow link":
            line = ["unshare", "--net", "sh", "-c", THROTTLED + shlex.join(line)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=600)
        median_s = json.loads((folder / "seconds.json").read_text())["median_s"]
        (folder / "seconds.json").unlink()
        return traced_steps([folder])[0], median_s

    def machine(self, steps: Sequence[MeasuredStep], half: Sequence[MeasuredStep] = (), devices: int = 2) -> Path:
        """Writes a machine of some cores with the best rates of products and exchanges that steps have."""
        rates = {dtype: max((own.flop * own.count / own.seconds for step in of for own in step.operators if own.flop),
                            default=1e9) for dtype, of in (("float32", steps), ("bfloat16", half)) if of}  # fmt: skip
        by_rank = zip(*(step.exchanges for step in median_step(steps)), strict=True)
        lasting = [(own[0].num_bytes, min(one.seconds for one in own)) for own in by_rank]
        carried = statistics.median(size / seconds for size, seconds in lasting if size >= LARGE_BYTES)
        source = "traced"
        link = {"latency_s": {"value": 100, "unit": "us", "source": source},
                "bytes_per_s": {"value": carried / 1e9, "unit": "GB/s", "source": source}}  # fmt: skip
        machine = {
            "version": 1, "name": "cores", "devices_per_host": devices, "within": link, "between": link,
            "device": {
                "name": "core", "memory_bytes": {"value": 8, "unit": "GiB", "source": source},
                "flop_per_s": {d: {"value": r / 1e9, "unit": "GFLOP/s", "source": source} for d, r in rates.items()},
                "vector_flop_per_s": {"value": 10, "unit": "GFLOP/s", "source": source},
                "memory_bytes_per_s": {"value": 10, "unit": "GB/s", "source": source},
            },
        }  # fmt: skip
        path = self.folder / "machine.yaml"
        path.write_text(yaml.safe_dump(json.loads(json.dumps(machine))))
        return path


def _fault(fault: str, runs: Runs) -> Row:
    """What `why` says of a fault, and what the fault costs."""
    half, changed = fault == "products in single precision", CHANGED.get(fault, {})
    with_s, without_s = [], []
    for _ in range(ROUNDS):
        plain, seconds = runs.run(**changed)
        without_s.append(seconds)
        steps, seconds = runs.run(fault, **changed)
        with_s.append(seconds)
    machine = runs.machine(steps, plain) if half else runs.machine(plain)
    told = why_slow(steps, None, named_cluster(str(machine)))
    right = [own for own in told.causes if own.name in {fault, *ALSO_RIGHT.get(fault, ())}]
    cost_s = statistics.median(with_s) - statistics.median(without_s)
    return {
        "fault": fault, "step_s": statistics.median(with_s), "cost_s": cost_s, "untold": told.untold,
        "first": told.causes[0].name if told.causes else "none",
        "named_first": bool(told.causes) and told.causes[0] in right,
        "saves_s": right[0].saves_s if right else 0.0,
    }  # fmt: skip


def _neighbour(name: str, runs: Runs) -> Row:
    """A step as measured, and as predicted by the calibration from the trace of another."""
    steps, _ = runs.run()
    cluster = named_cluster(str(runs.machine(steps)))
    traced_plan = _plan(runs, SIZES)
    calibration = calibration_of_trace(
        traced_plan, steps, cluster, name="traced", date=datetime.date.today()
    ).calibration
    sizes = {**SIZES, **NEIGHBOURS[name]}
    own = named_cluster(str(runs.machine(steps, devices=sizes["ranks"])))
    plan = _plan(runs, sizes)
    predicted_s = PlanEstimator(plan, cluster=own, calibration=calibration).estimate(plan).plan.step_s
    measured_s = statistics.median(runs.run(**NEIGHBOURS[name])[1] for _ in range(ROUNDS))
    return {"step": name, "measured_s": measured_s, "predicted_s": predicted_s}


def _plan(runs: Runs, sizes: dict[str, int]) -> Any:
    model = ",".join(f"{name}={sizes[own]}" for name, own in (
        ("hidden", "hidden"), ("blocks", "blocks"), ("heads", "heads"), ("sequence", "length")))  # fmt: skip
    path = runs.folder / "plan.json"
    machine = str(runs.folder / "machine.yaml")
    fixed = "--precision fp32 --runtime fsdp --zero 0 --tensor 1 --pipeline 1 --micro-batches 1 --remat none"
    line = ["plan", "--model", f"transformer:{model},vocabulary=2048", "--cluster", machine, "--batch",
            str(sizes["batch"]), *fixed.split(), "--schedule", "1f1b", "--json", str(path)]  # fmt: skip
    ended = CliRunner().invoke(command, line)
    if ended.exit_code:
        raise click.ClickException(ended.output)
    return read_plan(path)


def _tables(rows: Sequence[Row], nearby: Sequence[Row]) -> list[Table]:
    faults = {
        "fault": "{fault}", "named first": lambda row: "yes" if row["named_first"] else f"no: {row['first']}",
        "step": lambda row: units.seconds(row["step_s"]), "costs": lambda row: units.seconds(row["cost_s"]),
        "would save": lambda row: units.seconds(row["saves_s"]),
        "untold": lambda row: f"{100 * row['untold']:.1f} %",
    }  # fmt: skip
    steps = {
        "step": "{step}", "measured": lambda row: units.seconds(row["measured_s"]),
        "predicted": lambda row: units.seconds(row["predicted_s"]),
        "off by": lambda row: f"{100 * (row['predicted_s'] / row['measured_s'] - 1):+.1f} %",
    }  # fmt: skip
    return [Table.of(rows, faults), Table.of(nearby, steps)]


def _figures(rows: Sequence[Row], nearby: Sequence[Row]) -> list[Figure]:
    first = sum(row["named_first"] for row in rows)
    off = [abs(row["saves_s"] / row["cost_s"] - 1) for row in rows if row["named_first"] and row["cost_s"] > 0]
    near = [abs(row["predicted_s"] / row["measured_s"] - 1) for row in nearby]
    own, others = near[0], near[1:]
    return [
        Figure("slow steps", "faults named first, of 8", "7", str(first), first >= 7),
        Figure("slow steps", "wins predicted within 25 %", "all",
               f"{sum(error <= 0.25 for error in off)} of {len(off)}", all(error <= 0.25 for error in off)),
        Figure("slow steps", "the traced step", "3 %", f"{100 * own:.1f} %", own <= 0.03),
        Figure("slow steps", "neighbours, median and worst", "10, 15 %",
               f"{100 * statistics.median(others):.1f}, {100 * max(others):.1f} %",
               statistics.median(others) <= 0.1 and max(others) <= 0.15),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
