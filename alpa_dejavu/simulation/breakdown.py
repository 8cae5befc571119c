"""Where the time of a step goes, averaged over the devices: parts that add up to the step."""

from __future__ import annotations

import math
from collections.abc import Mapping

from alpa_dejavu._util import units
from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.step import sending

__all__ = ["AS_FAST", "PARTS", "breakdown", "gradients_s", "why_slower"]

AS_FAST = 1e-3
"""Plans within this share of the best one's step are as fast as it."""

PARTS = ("computing", "collectives", "transfers", "once a step", "idle")
"""The things that a device does during a step; "idle" is the pipeline's bubble, and "transfers" are those that hold it
up."""


def breakdown(plan: Plan) -> Mapping[str, float]:
    """Returns how many seconds of a step the average device of a plan spends on each of five parts: "computing",
    "collectives", "transfers", "once a step" and "idle"; and on a sixth one, "offload", where stages offload.

    Where the schedule's transfers go on while devices compute, what isn't hidden of them is idle time.
    """
    held_up = sending(plan.schedule) == "blocking" and not plan.streams
    parts = dict.fromkeys(PARTS, 0.0)
    for stage in plan.stages:
        share = stage.submesh.num_devices / plan.num_devices
        parts["computing"] += share * stage.compute_s * plan.num_micro_batches
        parts["collectives"] += share * stage.collective_s * plan.num_micro_batches
        parts["transfers"] += held_up * share * stage.boundary_s * plan.num_micro_batches
        parts["once a step"] += share * stage.per_step_s
        if stage.offload is not None:
            copies_s = (stage.offload.forward_s + stage.offload.backward_s) * plan.num_micro_batches
            parts["collectives"] -= share * copies_s
            parts["once a step"] -= share * stage.offload.step_s
            parts["offload"] = parts.get("offload", 0.0) + share * (copies_s + stage.offload.step_s)
    parts["idle"] = plan.step_s - sum(parts.values())
    return parts


def gradients_s(plan: Plan) -> float:
    """Returns the seconds of a step in which the average device exchanges gradients: a part of "once a step"."""
    return math.fsum(
        stage.submesh.num_devices / plan.num_devices * min(stage.synchronisation_s, stage.per_step_s)
        for stage in plan.stages
    )


def why_slower(plan: Plan, best: Plan) -> str:
    """Returns in a few words why a plan's step takes longer than the best plan's: which parts of it, such as transfers
    or idle time, take more seconds, the most first; of a plan that is as fast, that it has fewer layers if it has.
    """
    slower = plan.step_s - best.step_s
    if abs(slower) <= AS_FAST * best.step_s:
        fewer = f", but it has {plan.num_layers} layers to cut between once a host is lost, and not {best.num_layers}"
        return f"as fast, within {100 * AS_FAST:.1f} %" + (fewer if plan.num_layers < best.num_layers else "")
    least = breakdown(best)
    more = {part: seconds - least.get(part, 0.0) for part, seconds in breakdown(plan).items()}
    reasons = [
        f"{units.seconds(seconds, signed=True)} {part}"
        for part, seconds in sorted(more.items(), key=lambda item: -item[1])
        if seconds > 0.05 * max(slower, 1e-12)
    ]
    percent = 100 * slower / best.step_s
    return f"{percent:.1f} % slower: " + (", ".join(reasons[:3]) or "no part stands out")
