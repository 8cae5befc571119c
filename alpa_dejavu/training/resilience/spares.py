"""Which stage of a plan is worth a spare, by what training without it costs.

In: a plan, and for each stage how far training falls behind while it is lost.
Out: the share of time that a spare saves.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import final

from alpa_dejavu.problem import Plan, checks

__all__ = ["StageSpare", "blocks_of_stages", "spares"]


@final
@dataclasses.dataclass(frozen=True)
class StageSpare:
    """A spare for a stage of a plan, and what it is worth.

    Attributes:
        failures_per_s: how often one of its hosts fails.
        waiting_s, skipping_s: seconds that a failure costs where training waits until the host is back, and where it
            goes on without the stage.
        saved: the share of time that a spare saves: failures per second times the smaller cost less the spare's own.
    """

    stage: int
    hosts: tuple[str, ...]
    failures_per_s: float
    waiting_s: float
    skipping_s: float
    saved: float


def spares(
    plan: Plan, behind: Sequence[float], *, failures_per_s: float, repair_s: float, takeover_s: float = 0.0
) -> tuple[StageSpare, ...]:
    """Returns what a spare for each stage of a plan is worth, the most first.

    A stage of h hosts fails h times as often as a host. Without a spare a failure costs the repair's seconds where
    training waits, or those that training is behind where it goes on without the stage, whichever is less. With one it
    costs the takeover's. A spare saves h * failures_per_s * max(0, min(repair_s, behind * repair_s) - takeover_s) of
    each second.

    Args:
        behind: for each stage, the steps that training is behind for each step of its outage, as
            `outages.OutageTraining.behind` over the steps of the outage; infinity: it can't go on.

    Raises:
        ValueError: there isn't a number for each stage, or one is below 0.
    """
    for name, value in (("failures_per_s", failures_per_s), ("repair_s", repair_s), ("takeover_s", takeover_s)):
        checks.not_negative("spares", name, value)
    if len(behind) != len(plan.stages) or not all(steps >= 0 for steps in behind):
        raise ValueError(f"behind is {list(behind)}, but must be {len(plan.stages)} numbers of at least 0; give one "
                         "for each stage")  # fmt: skip
    results = []
    for number, (stage, steps_behind) in enumerate(zip(plan.stages, behind, strict=True)):
        rate, skipping_s = len(stage.hosts) * failures_per_s, steps_behind * repair_s
        saved = rate * max(0.0, min(repair_s, skipping_s) - takeover_s)
        results.append(StageSpare(number, stage.hosts, rate, repair_s, skipping_s, saved))
    return tuple(sorted(results, key=lambda spare: (-spare.saved, spare.stage)))


def blocks_of_stages(plan: Plan, blocks: Sequence[str]) -> dict[str, list[str]]:
    """Returns for each stage of a plan, "stage 0" and so on, the blocks of a model that it holds.

    The plan's layers are taken to be cut evenly along the blocks: block b of n lies at layer (b + 0.5) / n of them.
    """
    results: dict[str, list[str]] = {f"stage {number}": [] for number in range(len(plan.stages))}
    for number, block in enumerate(blocks):
        layer = math.floor((number + 0.5) / len(blocks) * plan.num_layers)
        holder = next(n for n, stage in enumerate(plan.stages) if stage.layers[0] <= layer <= stage.layers[1])
        results[f"stage {holder}"].append(block)
    return results
