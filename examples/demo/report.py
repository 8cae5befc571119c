"""What the demo says at its end, from the same numbers that it writes as JSON."""

from __future__ import annotations

import statistics
from typing import Any

from alpa_dejavu.problem import Plan

__all__ = ["describe", "plan_as_json"]


def plan_as_json(plan: Plan) -> dict[str, Any]:
    """The plan by plain lists and numbers; seconds and bytes."""
    return {
        "stages": [
            {
                "layers": list(range(stage.layers[0], stage.layers[1] + 1)),
                "submesh": [stage.submesh.num_hosts, stage.submesh.devices_per_host],
                "logical_mesh": list(stage.logical_mesh),
                "hosts": list(stage.hosts),
                "micro_batch_s": stage.cost_s,
                "per_step_s": stage.per_step_s,
                "memory_bytes": stage.memory_bytes,
            }
            for stage in plan.stages
        ],
        "num_micro_batches": plan.num_micro_batches,
        "schedule": plan.schedule,
        "cluster": plan.cluster,
        "lower_bound_s": plan.lower_bound_s,
    }


def describe(result: dict[str, Any], tolerance: float, checked_steps: int) -> str:
    """The lines that the demo ends with."""
    losses, steps = result["losses"], result["measured_step_s"]
    shown = sorted({0, len(losses) // 4, len(losses) // 2, 3 * len(losses) // 4, len(losses) - 1})
    last = statistics.fmean(losses[-5:])
    difference = result["max_relative_parameter_difference"]
    lines = [
        "Loss: " + ", ".join(f"step {number + 1}: {losses[number]:.3f}" for number in shown),
        f"Mean loss of the last 5 steps: {last:.3f} nats; entropy of single bytes: {result['unigram_entropy']:.3f}",
        f"Seconds per step: predicted {result['predicted_step_s']:.3f}, measured {statistics.median(steps[1:]):.3f} "
        f"(median of steps 2 to {len(steps)}; the first took {steps[0]:.3f})",
        f"After {checked_steps} steps, against single-device training: parameters differ by {difference:.1e} "
        f"(largest relative difference of a tensor, by norms; tolerance {tolerance:.0e}), "
        f"losses by {result['max_loss_difference']:.1e}",
    ]
    if "compare" in result:
        lines += _comparison(result["compare"])
    return "\n".join(lines)


def _comparison(compare: dict[str, Any]) -> list[str]:
    rows = [
        (name, compare[key]["planning_s"], median)
        for name, key, median in zip(
            ("DejavuStageOption", "AutoStageOption"), ("dejavu", "auto"), compare["median_step_s"], strict=True
        )
    ]
    return [
        f"{'':20}{'planning':>12}{'step (median)':>18}",
        *(f"{name:20}{planning:>10.2f} s{step:>16.4f} s" for name, planning, step in rows),
        f"Planning {compare['planning_ratio']:.0f} times faster; a step takes {compare['step_ratio']:.2f} times "
        "AutoStageOption's (median of paired rounds)",
        _parts(compare["auto"]["planning_s"], compare["auto"]["parts_s"]),
    ]


def _parts(total_s: float, parts_s: dict[str, float]) -> str:
    """Where AutoStageOption's time goes, and what is saved where costs are assigned."""
    named = {**parts_s, "the rest of get_compute_cost": total_s - sum(parts_s.values())}
    said = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in named.items())
    saved = parts_s["compilation"] + parts_s["profiling"]
    return f"AutoStageOption's time: {said}; costs that are assigned (alpa_dejavu.get_compute_cost) save {saved:.1f} s"
