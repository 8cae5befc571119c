"""Others' strategies beside ours on AMP's cases, all priced by one simulation.

    python benchmarks/strategies.py [--profiles ../shared/data/amp] [--json OUT] [--only CASE ...]

The cases are those of AMP's evaluation: GPT-2 on four equal hosts and on hosts of two kinds, a model of unlike layers
on equal hosts. With `--profiles` layers take what they took on AMP's devices, as in its own model, and its released
variant is checked against the estimates that AMP logged; without, layers are priced by the roofline. Nothing is run
here: all seconds are predictions, and `step_s` of HetPipe is an estimate of a training that isn't synchronous.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from _strategy_cases import Case, ProfiledLayers, cases, model_of, without_starts
from alpa_dejavu.costs.latency import LatencyModel, latency_model
from alpa_dejavu.costs.runtime import CostModels
from alpa_dejavu.planning.rivals import (
    AlpaDefault,
    Amp,
    Dejavu,
    HetPipe,
    Megatron,
    Strategy,
    StrategyPlan,
    StrategyTask,
)
from alpa_dejavu.planning.rivals.stages import Pipeline
from alpa_dejavu.problem import NoPlanError
from harness import Results, Table, options, wrong_input_told

STRATEGIES: tuple[Strategy, ...] = (
    Megatron(), Megatron("all"), AlpaDefault(), Amp("paper"), Amp("released"),
    HetPipe("np"), HetPipe("ed"), HetPipe("hd"), Dejavu(),
)  # fmt: skip
LOGGED = {"homogeneous": "homogeneous_trials.csv", "unlike layers": "het_model_trials.csv"}
AGREES = 1e-4


@wrong_input_told
def main(arguments: Sequence[str] | None = None) -> int:
    """Plans each case by each strategy; returns 2 where an input is wrong, with what and where on stderr."""
    parser = options(__doc__)
    parser.add_argument("--profiles", type=Path, help="the folder with AMP's forward times of layers")
    parser.add_argument("--only", nargs="+", choices=[case.name for case in cases()], help="these cases alone")
    given = parser.parse_args(arguments)
    latency = latency_model("analytic") if given.profiles is None else ProfiledLayers.of(given.profiles)
    chosen = [case for case in cases() if given.only is None or case.name in given.only]
    result = {case.name: _case(case, latency, given.profiles) for case in chosen}
    shown = [part for name, each in result.items() for part in _shown(name, each)]
    return Results(given.json, latency="analytic" if given.profiles is None else "profiled", cases=result).shown(*shown)


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
        task = StrategyTask(model, 1, cluster, case.batch, CostModels.named(latency))
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


def _logged(task: StrategyTask, path: Path) -> dict[str, int]:
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


def _stages(row: dict[str, Any]) -> str:
    """How many layers each stage has, and on which logical mesh."""
    return " ".join(
        f"{stage['layers'][1] - stage['layers'][0] + 1}x({stage['data_parallel']},{stage['tensor_parallel']})"
        for stage in row["plan"][0]["stages"]
    )


COLUMNS = {
    "strategy": "{strategy}",
    "step": "{step_s:seconds}",
    "own estimate": "{own_s:seconds}",
    "over Megatron": "{over_megatron:.2f}x",
    "fits": "{fits}",
    "on Alpa": "{runs_on_alpa}",
    "stages": _stages,
    "micro-batches": "{plan[0][num_micro_batches]} of {plan[0][micro_batch]}",
}


def _shown(name: str, result: dict[str, Any]) -> Iterator[Table | str]:
    rows = [{"strategy": strategy, **row} for strategy, row in result["strategies"].items()]
    yield Table.of(rows, COLUMNS, f"{name}: {result['cluster']}, batch {result['batch']}")
    if result["amp_says"] is not None:
        yield f"AMP says of its own plan: {result['amp_says']}x Megatron's throughput, measured."
    if "logged_estimates" in result:
        logged = result["logged_estimates"]
        yield (
            f"The released variant comes out with {logged['agree']} of {logged['logged']} estimates that AMP logged; "
            f"{logged['of_one_micro_batch']} more are of one micro-batch, which AMP cuts by other rules."
        )


if __name__ == "__main__":
    raise SystemExit(main())
