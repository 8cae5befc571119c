"""The results of measured plans: regret, and how far the simulation is from what was measured."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.stats import spearmanr

from alpa_dejavu.calibration.measurement import MeasuredPlan
from alpa_dejavu.problem import Plan
from harness import Figure, Table

Rounds = Sequence[Sequence[float]]
MEDIAN_BELOW, WORST_BELOW = 0.03, 0.12


def job_result(
    name: str,
    total: int,
    listed: Sequence[str],
    roles: Mapping[str, str],
    plans: Mapping[str, Plan],
    runs: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything of a job, for the JSON file.

    Of its plans (`total`) those are `listed` that were to be measured before ours was known; `roles` has the labels of
    "ours" and, if there is one, "auto"; `plans` are all that were measured. `runs` has `compile_s`, `pinned`,
    `threads`; of each plan `steps`, its seconds by round, `waited_for_core`, in which part of each turn its workers
    were ready while others had their cores, and `measured`.
    """
    rows = [_row(label, plan, label in listed, runs) for label, plan in plans.items()]
    times = {row["label"]: row["step_s"] for row in rows if "step_s" in row}
    pool = {label: seconds for label, seconds in times.items() if label in listed or label == roles["ours"]}
    result = {
        "name": name,
        "plans_in_all": total,
        "plans_listed": len(listed),
        "roles": dict(roles),
        "pinned": runs["pinned"],
        "threads": runs["threads"],
        "plans": rows,
    }
    ours = roles["ours"]
    if ours in times:
        best = min(pool, key=lambda label: pool[label])
        result |= {
            "best": best,
            "regret": times[ours] / times[best] - 1,
            "held_out_regret": held_out_regret(runs["steps"], ours, list(pool)),
            "rank": 1 + sum(seconds < times[ours] for seconds in pool.values()),
            "measured_plans": len(pool),
            "regret_of_a_plan_by_chance": statistics.median(pool.values()) / times[best] - 1,
            "rank_correlation": _rank_correlation(pool, plans),
        }
        if roles.get("auto") in times:
            theirs = roles["auto"]
            result["ours_to_auto"] = 1.0 if theirs == ours else paired_ratio(runs["steps"][ours], runs["steps"][theirs])
    return result


def _row(label: str, plan: Plan, listed: bool, runs: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "label": label,
        "listed": listed,
        "num_micro_batches": plan.num_micro_batches,
        "stages": [
            {
                "layers": list(stage.layers),
                "submesh": [stage.submesh.num_hosts, stage.submesh.devices_per_host],
                "logical_mesh": list(stage.logical_mesh),
                "zero": stage.zero,
                "options": dict(stage.options),
                "predicted_forward_s": stage.forward_s,
                "predicted_backward_s": stage.backward_s,
                "predicted_per_step_s": stage.per_step_s,
            }
            for stage in plan.stages
        ],
        "predicted_s": plan.step_s,
    }
    compiled = runs["compile_s"][label]
    if isinstance(compiled, str):
        return row | {"error": compiled}
    found: MeasuredPlan = runs["measured"][label]
    for stage, times, computing in zip(row["stages"], found.stages, found.computing_s, strict=True):
        kept = {name: value for name, value in dataclasses.asdict(times).items() if name.endswith("_s")}
        stage["measured"] = kept | {"computing_forward_s": computing[0], "computing_backward_s": computing[1]}
    return row | {
        "compile_s": compiled,
        "steps_s": [list(turn) for turn in runs["steps"][label]],
        "waited_for_core": list(runs["waited_for_core"][label]),
        "noted_steps_s": list(found.noted_steps_s),
        "step_s": found.step_s,
        "answer_s": found.answer_s,
        "simulated_s": found.simulated_s,
        "simulation_error": found.simulated_s / found.step_s - 1,
        "simulation_error_of_noted_steps": found.simulated_s / statistics.median(found.noted_steps_s) - 1,
    }


def held_out_regret(rounds: Mapping[str, Rounds], ours: str, pool: Sequence[str]) -> float:
    """By how much ours is slower than the best, which is chosen by the even rounds, in the odd ones.

    The fastest of many plans by the same steps that it is then judged by is partly the luckiest.
    """

    def median(label: str, start: int) -> float:
        return statistics.median([seconds for turn in rounds[label][start::2] for seconds in turn])

    if len(rounds[ours]) < 2:
        return float("nan")
    best = min(pool, key=lambda label: median(label, 0))
    return median(ours, 1) / median(best, 1) - 1


def paired_ratio(ours: Rounds, theirs: Rounds) -> float:
    """The median, over rounds, of our seconds by theirs.

    >>> paired_ratio([[1.0, 1.0], [3.0]], [[2.0, 2.0], [2.0]])
    1.0
    """
    return statistics.median(statistics.fmean(a) / statistics.fmean(b) for a, b in zip(ours, theirs, strict=True))


def _rank_correlation(pool: Mapping[str, float], plans: Mapping[str, Plan]) -> float | None:
    """Spearman's, of predicted and measured steps."""
    if len(pool) < 3:
        return None
    return float(spearmanr([plans[label].step_s for label in pool], list(pool.values())).statistic)


def _stage_ratios(jobs: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """For each number of devices that stages have: the medians of measured times by predicted ones."""
    ratios: dict[int, list[tuple[float, float]]] = {}
    for stage in (stage for job in jobs for row in job["plans"] if "step_s" in row for stage in row["stages"]):
        measured, predicted = stage["measured"], stage["predicted_forward_s"] + stage["predicted_backward_s"]
        micro_batch = (measured["forward_s"] + measured["backward_s"]) / predicted
        once = measured["per_step_s"] / stage["predicted_per_step_s"]
        ratios.setdefault(math.prod(stage["submesh"]), []).append((micro_batch, once))
    return {
        devices: {
            "forward_backward": statistics.median(ratio for ratio, _ in pairs),
            "per_step": statistics.median(ratio for _, ratio in pairs),
        }
        for devices, pairs in sorted(ratios.items())
    }


def jobs_table(jobs: Sequence[Mapping[str, Any]]) -> Table:
    """A row for each job."""
    columns = {
        "job": "{name}",
        "plans": "{plans_listed} of {plans_in_all}",
        "ours over the best (rank)": "{regret:+.1%} ({rank})",
        "held out": "{held_out_regret:+.1%}",
        "a plan by chance": "{regret_of_a_plan_by_chance:+.1%}",
        "rank correlation": "{rank_correlation:.2f}",
        "ours by AutoStageOption's": "{ours_to_auto:.2f}",
    }
    return Table.of(jobs, columns)


def figures(jobs: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Held-out regrets beside their aims."""
    regrets = {job["name"]: job["held_out_regret"] for job in jobs if "held_out_regret" in job}
    if not regrets:
        return []
    middle, (worst, most) = statistics.median(regrets.values()), max(regrets.items(), key=lambda item: item[1])
    return [
        Figure("held-out regret", "median", f"under {MEDIAN_BELOW:.0%}", f"{middle:.1%}", middle < MEDIAN_BELOW),
        Figure("held-out regret", "worst", f"under {WORST_BELOW:.0%}", f"{most:.1%} ({worst})", most < WORST_BELOW),
    ]


def summary(jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Figures over all jobs, and lines that say them."""
    judged = [job for job in jobs if "regret" in job]
    errors = [abs(row["simulation_error"]) for job in jobs for row in job["plans"] if "step_s" in row]
    noted = [abs(row["simulation_error_of_noted_steps"]) for job in jobs for row in job["plans"] if "step_s" in row]
    lines = []
    found: dict[str, Any] = {"plans": len(errors)}
    if judged:
        found["median_regret"] = statistics.median(job["regret"] for job in judged)
        found["median_held_out_regret"] = statistics.median(job["held_out_regret"] for job in judged)
        lines.append(f"median regret of {len(judged)} jobs: {found['median_regret']:.1%}")
    if errors:
        waited = [share for job in jobs for row in job["plans"] for share in row.get("waited_for_core", ())]
        found["median_waited_for_core"] = statistics.median(waited)
        lines.append(f"workers were ready while others had their cores: {statistics.median(waited):.1%} of the time")
        found["stages"] = _stage_ratios(jobs)
        lines += [
            f"stages of {devices} device(s): forward plus backward {ratios['forward_backward']:.2f} times the "
            f"predicted ones, what comes once a step {ratios['per_step']:.2f} times (medians)"
            for devices, ratios in found["stages"].items()
        ]
        found["median_simulation_error"] = statistics.median(errors)
        found["median_simulation_error_of_noted_steps"] = statistics.median(noted)
        found["largest_simulation_error"] = max(errors)
        lines.append(
            f"simulation of measured stages against the measured step, {len(errors)} plans: median error "
            f"{found['median_simulation_error']:.1%}, largest {found['largest_simulation_error']:.1%}"
        )
    return found | {"lines": lines}
