"""`alpa-dejavu history`."""

from __future__ import annotations

import dataclasses
import datetime
import json
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from alpa_dejavu._util import units
from alpa_dejavu.calibration.history import history_path
from alpa_dejavu.cli.commands import Command, option
from alpa_dejavu.cli.output import console, write_stdout
from alpa_dejavu.cli.parameters import HISTORY
from alpa_dejavu.cli.table import Table, new_table
from alpa_dejavu.plans.stage_rows import layers_text, mesh_text
from alpa_dejavu.problem import ZERO_NAMES, Plan, StepCorrection

if TYPE_CHECKING:
    from alpa_dejavu.calibration.history import Correction, PastRun

_MOST_STAGES = 3


@click.command(
    cls=Command,
    examples=("alpa-dejavu history", "alpa-dejavu history --history runs.sqlite --json"),
    rests_on="Runs are those that `alpa-dejavu profile` measured. Corrections are fitted to them, and are near 1 where "
    "they are few.",
)
@option("--history", "path", type=HISTORY, metavar="FILE", help="File of past runs.  [default: the user's]")
@option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def history(path: pathlib.Path | None, as_json: bool) -> None:
    """Shows past runs, and how they correct predictions."""
    from alpa_dejavu.calibration.history import Correction, Store
    from alpa_dejavu.calibration.history.past_run import UNKNOWN

    store = Store(history_path(path))
    runs = store.runs()
    corrections = _corrections(runs, Correction.fit(runs))
    if as_json:
        data = {
            "version": 1,
            "file": str(store.path),
            "runs": [_run_data(run) for run in runs],
            "corrections": [
                {"model": model, "cluster": cluster, **dataclasses.asdict(by)} for model, cluster, by in corrections
            ],
        }
        write_stdout(json.dumps(data, indent=2) + "\n")
        return
    to = console()
    if not runs:
        to.print(f"{store.path} has no runs yet; `alpa-dejavu profile` appends them")
        return
    to.print(f"{store.path}: {units.counted(len(runs), 'run')}")
    to.print(_runs_table(runs))
    table = new_table(("a new plan for", "on"), ("is multiplied by", "give or take", "runs", "of its own"))
    for model, cluster, by in corrections:
        table.add_row(model, cluster, f"{by.factor:.3f}", f"{100 * by.spread:.1f} %", str(by.runs), str(by.own_runs))
    to.print(table)
    old = sum(run.origin.calibration == UNKNOWN for run in runs)
    if old:
        to.print(
            f"{units.counted(old, 'run')} of an older release correct nothing, since the file doesn't say by which "
            "calibration they were predicted"
        )


def _corrections(runs: Sequence[PastRun], correction: Correction) -> list[tuple[str, str, StepCorrection]]:
    """For each model and cluster that ran, by one predictor: their names, and what is found for a new plan."""
    by_origin: dict[Any, list[PastRun]] = {}
    for run in runs:
        by_origin.setdefault(run.origin, []).append(run)
    rows = []
    for origin, of_origin in by_origin.items():
        by = correction.typical(origin, [run.plan for run in of_origin])
        if by.own_runs:
            last = of_origin[-1].plan
            rows.append((last.model or f"model {origin.model}", last.cluster, by))
    return rows


def _runs_table(runs: Sequence[PastRun]) -> Table:
    table = new_table(("when", "model", "cluster"), ("predicted", "measured", "steps", "ratio"), ("plan",))
    for run in runs:
        plan = run.plan
        when = datetime.datetime.fromtimestamp(run.when_s).strftime("%Y-%m-%d %H:%M")
        times = map(units.seconds, (run.predicted_s, run.measured_s))
        figures = *times, str(len(run.steps_s)), f"{run.ratio:.3f}"
        table.add_row(when, plan.model or f"model {run.origin.model}", plan.cluster, *figures, short_plan(plan))
    return table


def short_plan(plan: Plan) -> str:
    """Returns a plan in a few words: its number of micro-batches and its first stages."""
    stages = []
    for stage in plan.stages[:_MOST_STAGES]:
        savings = ("remat", stage.remat != "none"), (f"ZeRO {ZERO_NAMES[stage.zero]}", stage.zero > 0)
        extra = [name for name, on in savings if on]
        stages.append(" ".join([layers_text(stage), "on", mesh_text(stage.logical_mesh), *extra]))
    more = len(plan.stages) - len(stages)
    rest = [f"{units.counted(more, 'stage')} more"] if more else []
    return f"{units.counted(plan.num_micro_batches, 'micro-batch', 'micro-batches')}: {', '.join([*stages, *rest])}"


def _run_data(run: PastRun) -> dict[str, Any]:
    from alpa_dejavu.plans.plan_file import plan_data

    when = datetime.datetime.fromtimestamp(run.when_s, datetime.timezone.utc)
    return {
        "when": when.isoformat(timespec="seconds"),
        "model": run.plan.model,
        "model_fingerprint": run.origin.model,
        "cluster": run.plan.cluster,
        "cluster_fingerprint": run.origin.cluster,
        "devices": run.origin.devices,
        "predictor": run.origin.predictor,
        "calibration": run.origin.calibration,
        "predicted_s": run.predicted_s,
        "measured_s": run.measured_s,
        "num_steps": len(run.steps_s),
        "ratio": run.ratio,
        "versions": dict(run.versions),
        "plan": plan_data(run.plan),
    }
