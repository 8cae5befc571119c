"""Our plans beside AutoStageOption's, on this machine as it is and as others may find theirs.

    python benchmarks/conditions.py --json conditions.json [--jobs demo mlp] [--conditions quiet "busy core"]

Each job is planned and trained under each condition: quiet, beside a program that keeps one core busy, with 2 and with
8 devices, with workers pinned to cores, on one core alone, and on two raylets. AutoStageOption's plan is searched once
for each job and condition, kept in the JSON file, and never an input to ours. Ours starts with an empty cache and no
history. Then both are trained in turns, several times, each time planned anew by ours. A run that was broken off goes
on from its file.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

from tqdm import tqdm

from _conditions_run import CASES, CONDITIONS, disturbed, running
from _measured_report import paired_ratio
from harness import Figure, Remote, Results, Table, at_least, options

WARM_UP = 3
MEDIAN_MOST, CELL_MOST, PLANNING_LEAST, KEPT_LEAST = 1.02, 1.10, 15.0, 100.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures what isn't in the file yet, prints and writes; 1 if a figure is missed."""
    parser = options(__doc__, json="conditions.json")
    parser.add_argument("--jobs", nargs="+", choices=list(CASES), default=list(CASES), help="default: all")
    parser.add_argument("--conditions", nargs="+", choices=list(CONDITIONS), default=list(CONDITIONS))
    parser.add_argument("--tries", type=at_least(0), default=3, help="of each cell; 0 shows what is there (default: 3)")
    parser.add_argument("--rounds", type=at_least(2), default=10, help="in turns (default: %(default)s)")
    parser.add_argument("--steps", type=at_least(1), default=5, help="of each in a round (default: %(default)s)")
    given = parser.parse_args(arguments)
    result = Results(given.json, resumed_by={"rounds": given.rounds, "steps": given.steps})
    cells = [(job, condition) for condition in given.conditions for job in given.jobs]
    for job, condition in tqdm(cells if given.tries else [], desc="jobs under conditions"):
        auto = result.known("auto", f"{job}, {condition}", _auto, job, condition)
        for n in range(given.tries):
            result.known("runs", f"{job}, {condition}, {n + 1}", _run, job, condition, auto["stages"], given)
    rows = [row for job, condition in cells if (row := _row(result, job, condition)) is not None]
    return result.shown(_table(rows), *_lines(result), figures=_figures(rows))


def _auto(job: str, condition: str) -> dict[str, Any]:
    """AutoStageOption's plan, and the seconds that it took."""
    made = CONDITIONS[condition]
    with tempfile.TemporaryDirectory() as cache, disturbed(made), running(made, cache) as alone:
        found: dict[str, Any] = alone("prepare", job, [])
    return found


def _run(job: str, condition: str, theirs: list[dict[str, Any]], given: Any) -> dict[str, Any]:
    """Ours, planned with empty caches and once more with what it keeps, and the steps of both plans in turns."""
    made = CONDITIONS[condition]
    with tempfile.TemporaryDirectory() as cache, disturbed(made):
        with running(made, cache) as first:
            cold = first("prepare", job, None)
        # Neither is planned while the other's cluster starts, which keeps the machine busy.
        with running(made, cache) as ours:
            kept = ours("prepare", job, None)
            with running(made, cache) as auto:
                auto("prepare", job, theirs)
                seconds = _in_turns(ours, auto, given.rounds, given.steps)
    return {"cold": cold, "kept": kept, "seconds": seconds, "ratio": paired_ratio(*seconds)}


def _in_turns(ours: Remote, auto: Remote, rounds: int, steps: int) -> list[list[list[float]]]:
    """The seconds of each step of each round of ours, and of the other; who begins changes."""
    for one in (ours, auto):
        one("steps", WARM_UP)
    found: list[list[list[float]]] = [[], []]
    for number in range(rounds):
        turns = list(zip(found, (ours, auto), strict=True))
        for record, one in turns if number % 2 else reversed(turns):
            record.append(one("steps", steps))
    return found


def _row(result: Results, job: str, condition: str) -> dict[str, Any] | None:
    """The joint answer of a job's runs under a condition; None where there are none."""
    runs = [run for name, run in result.get("runs", {}).items() if name.startswith(f"{job}, {condition}, ")]
    if not runs:
        return None
    auto_s = result["auto"][f"{job}, {condition}"]["planning_s"]
    cold_s, kept_s = (statistics.median(run[name]["planning_s"] for run in runs) for name in ("cold", "kept"))
    kept_s -= statistics.median(run["kept"]["measuring_s"] for run in runs)
    steps = [statistics.median(s for run in runs for turn in run["seconds"][n] for s in turn) for n in (0, 1)]
    return {
        "job": job,
        "condition": condition,
        "ratio": statistics.median(run["ratio"] for run in runs),
        "ratios": [run["ratio"] for run in runs],
        "ours_s": steps[0],
        "auto_s": steps[1],
        "predicted_s": statistics.median(run["kept"]["predicted_s"] for run in runs),
        "planning_s": (auto_s, cold_s, kept_s),
        "cold": auto_s / cold_s,
        "kept": auto_s / kept_s,
        "plan": _said(runs[-1]["kept"]["stages"]),
        "theirs": _said(result["auto"][f"{job}, {condition}"]["stages"]),
    }


def _said(stages: list[dict[str, Any]]) -> str:
    """The layers and devices of each stage."""
    return ", ".join(
        f"{stage['layers'][0]}-{stage['layers'][-1]}: {stage['logical_mesh'][0]}x{stage['logical_mesh'][1]}"
        for stage in stages
    )


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = {
        "job": "{job}",
        "condition": "{condition}",
        "ours over auto": "{ratio:.2f}",
        "of each run": lambda row: " ".join(f"{ratio:.2f}" for ratio in row["ratios"]),
        "step": "{ours_s:seconds}",
        "predicted": "{predicted_s:seconds}",
        "auto's": "{auto_s:seconds}",
        "planning faster, cold": "{cold:.0f}",
        "without measuring": "{kept:.0f}",
        "plan (layers: mesh)": "{plan}",
        "auto's plan": "{theirs}",
    }
    return Table.of(rows, columns)


def _lines(result: Results) -> list[str]:
    """Where AutoStageOption's time goes."""
    found = list(result.get("auto", {}).values())
    if not found:
        return []
    total = sum(one["planning_s"] for one in found)
    parts = {name: sum(one["parts_s"][name] for one in found) for name in ("compilation", "profiling", "dp")}
    rest = total - sum(parts.values())
    said = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in parts.items())
    saved = (parts["compilation"] + parts["profiling"]) / total
    return [
        f"Of AutoStageOption's planning time, {said}, and the rest {rest / total:.0%}. Costs that are assigned "
        f"(`alpa_dejavu.get_compute_cost`) save the compilation and the profiling, {saved:.0%} of it."
    ]


def _figures(rows: list[dict[str, Any]]) -> list[Figure]:
    if not rows:
        return []
    ratios = [row["ratio"] for row in rows]
    worst = max(rows, key=lambda row: row["ratio"])
    middle = statistics.median(ratios)
    auto_s, cold_s, kept_s = (sum(seconds) for seconds in zip(*(row["planning_s"] for row in rows), strict=True))
    cold, kept = auto_s / cold_s, auto_s / kept_s
    where = f"{worst['job']}, {worst['condition']}"
    return [
        Figure("plans", "median ratio of steps", f"at most {MEDIAN_MOST}", f"{middle:.3f}", middle <= MEDIAN_MOST),
        Figure("plans", "worst ratio", f"at most {CELL_MOST}", f"{worst['ratio']:.2f} ({where})",
               worst["ratio"] <= CELL_MOST),
        Figure("planning", "all together, cold, with measuring", f"{PLANNING_LEAST:.0f} times faster", f"{cold:.0f}",
               cold >= PLANNING_LEAST),
        Figure("planning", "all together, with what is kept, without measuring", f"{KEPT_LEAST:.0f} times faster",
               f"{kept:.0f}", kept >= KEPT_LEAST),
    ]  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
