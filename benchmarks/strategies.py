"""Others' strategies beside ours on AMP's cases, all priced by one simulation.

    python benchmarks/strategies.py [--profiles ../shared/data/amp] [--json OUT] [--only CASE ...]

The cases are those of AMP's evaluation: GPT-2 on four equal hosts and on hosts of two kinds, a model of unlike layers
on equal hosts. With `--profiles` layers take what they took on AMP's devices, as in its own model, and its released
variant is checked against the estimates that AMP logged; without, layers are priced by the roofline. Nothing is run
here: all seconds are predictions, and `step_s` of HetPipe is an estimate of a training that isn't synchronous.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from _strategy_cases import Case, ProfiledLayers, cases, model_of, without_starts
from alpa_dejavu._util import units
from alpa_dejavu.costs.cost_models import CostModels
from alpa_dejavu.costs.latency import LatencyModel, latency_model
from alpa_dejavu.planning.strategies import (
    AlpaDefault,
    Amp,
    Dejavu,
    HetPipe,
    Megatron,
    Pipeline,
    Strategy,
    StrategyPlan,
    Task,
)
from alpa_dejavu.problem import NoPlanError

STRATEGIES: tuple[Strategy, ...] = (
    Megatron(), Megatron("all"), AlpaDefault(), Amp("paper"), Amp("released"),
    HetPipe("np"), HetPipe("ed"), HetPipe("hd"), Dejavu(),
)  # fmt: skip
LOGGED = {"homogeneous": "homogeneous_trials.csv", "unlike layers": "het_model_trials.csv"}
AGREES = 1e-4


def main(arguments: Sequence[str] | None = None) -> int:
    """Plans each case by each strategy; returns 2 where an input is wrong, with what and where on stderr."""
    given = _parsed(arguments)
    try:
        latency = latency_model("analytic") if given.profiles is None else ProfiledLayers.of(given.profiles)
        chosen = [case for case in cases() if given.only is None or case.name in given.only]
        result = {case.name: _case(case, latency, given.profiles) for case in chosen}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json is not None:
        source = "analytic" if given.profiles is None else "profiled"
        text = json.dumps({"version": 1, "latency": source, "cases": result}, indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")
    for name, each in result.items():
        _show(name, each)
    return 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=Path, help="the folder with AMP's forward times of layers")
    parser.add_argument("--json", type=Path, help="write the result here, too")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in cases()], help="these cases alone")
    return parser.parse_args(arguments)


def _case(case: Case, latency: LatencyModel, profiles: Path | None) -> dict[str, Any]:
    """All strategies on a case, and their throughput over Megatron's."""
    cluster = case.cluster if profiles is None else without_starts(case.cluster)
    model = model_of(case.layers, case.model_name, profiled=profiles is not None)
    rows: dict[str, dict[str, Any]] = {}
    for strategy in tqdm(STRATEGIES, desc=case.name, unit="strategy"):
        try:
            made = strategy.plan(model, cluster, case.batch, latency=latency)
        except (NoPlanError, ValueError) as error:
            rows[strategy.name] = {"error": str(error)}
            continue
        rows[strategy.name] = _row(made)
    expert = rows[Megatron().name].get("samples_per_s")
    for row in rows.values():
        row["over_megatron"] = row["samples_per_s"] / expert if expert and "samples_per_s" in row else None
    result = {"cluster": cluster.name, "batch": case.batch, "amp_says": case.amp_says, "strategies": rows}
    if profiles is not None and case.name in LOGGED:
        task = Task(model, 1, cluster, case.batch, CostModels.named(latency))
        result["logged_estimates"] = _logged(task, profiles / LOGGED[case.name])
    return result


def _row(made: StrategyPlan) -> dict[str, Any]:
    return {
        "step_s": made.step_s,
        "own_s": made.own_s,
        "samples_per_s": made.samples_per_s,
        "fits": made.fits,
        "runs_on_alpa": made.runs_on_alpa,
        "tried": made.tried,
        "seconds": made.seconds,
        "plan": [_described(pipeline) for pipeline in dict.fromkeys(made.pipelines)],
        "notes": list(made.notes),
    }


def _described(pipeline: Pipeline) -> dict[str, Any]:
    return {
        "micro_batch": pipeline.micro_batch,
        "num_micro_batches": pipeline.num_micro_batches,
        "stages": [
            {
                "layers": [stage.first, stage.last],
                "data_parallel": stage.config.data_parallel,
                "tensor_parallel": stage.config.tensor_parallel,
                "remat": stage.config.remat,
                "zero": stage.config.zero,
                "hosts": list(stage.hosts),
            }
            for stage in pipeline.stages
        ],
    }


def _logged(task: Task, path: Path) -> dict[str, int]:
    """How many of AMP's logged estimates its released variant comes out with; what was measured isn't read.

    Plans of one micro-batch stand apart: AMP's code cuts those by a rule of its own for each of its models.
    """
    ours = {}
    for own_s, pipeline in Amp("released").estimates(task):
        config = pipeline.stages[0].config
        each, across = pipeline.micro_batch // config.data_parallel, config.data_parallel
        ours[each, config.tensor_parallel, across, len(pipeline.stages)] = own_s, pipeline.num_micro_batches
    found = {"logged": 0, "agree": 0, "of_one_micro_batch": 0}
    with path.open(encoding="utf-8", newline="") as rows:
        for row in csv.DictReader(rows):
            own_s, count = ours[int(row["micro_batch"]), int(row["tp"]), int(row["dp"]), int(row["pp"])]
            if count == 1 and int(row["pp"]) > 1:
                found["of_one_micro_batch"] += 1
                continue
            found["logged"] += 1
            found["agree"] += abs(own_s / float(row["amp_predicted_s"]) - 1) <= AGREES
    return found


def _show(name: str, result: dict[str, Any]) -> None:
    table = Table(title=f"{name}: {result['cluster']}, batch {result['batch']}")
    for column in ("strategy", "step", "own estimate", "over Megatron", "fits", "on Alpa", "stages", "micro-batches"):
        table.add_column(column)
    for strategy, row in result["strategies"].items():
        if "error" in row:
            table.add_row(strategy, row["error"])
            continue
        own = "" if row["own_s"] is None else units.seconds(row["own_s"])
        first = row["plan"][0]
        stages = " ".join(
            f"{stage['layers'][1] - stage['layers'][0] + 1}x({stage['data_parallel']},{stage['tensor_parallel']})"
            for stage in first["stages"]
        )
        table.add_row(
            strategy, units.seconds(row["step_s"]), own, f"{row['over_megatron'] or float('nan'):.2f}x",
            "yes" if row["fits"] else "no", "yes" if row["runs_on_alpa"] else "no", stages,
            f"{first['num_micro_batches']} of {first['micro_batch']}",
        )  # fmt: skip
    console = Console(width=200)
    console.print(table)
    if result["amp_says"] is not None:
        console.print(f"AMP says of its own plan: {result['amp_says']}x Megatron's throughput, measured.")
    if "logged_estimates" in result:
        logged = result["logged_estimates"]
        console.print(f"AMP's logged estimates that the released variant comes out with: {logged}")


if __name__ == "__main__":
    raise SystemExit(main())
