"""Explains what bounds a plan, and what would help: the step is simulated again with one thing changed at a time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from alpa_dejavu._util import units
from alpa_dejavu._util.near_names import name_ranges
from alpa_dejavu.planning.given.other_settings import OtherSetting, other_settings, what_would_fit
from alpa_dejavu.plans.plan_changes import stages_text
from alpa_dejavu.problem import Plan
from alpa_dejavu.simulation.breakdown import breakdown
from alpa_dejavu.simulation.plan_times import PlanStep, scaled
from alpa_dejavu.simulation.sensitivity import Sensitivity, ranked, sensitivities
from alpa_dejavu.simulation.step import StageTimes

if TYPE_CHECKING:
    from alpa_dejavu.calibration import Calibration
    from alpa_dejavu.planning.changed.kept import Kept

_BOUNDS = {
    "computing": "the devices' computing",
    "collectives": "collectives among the devices of a stage",
    "transfers": "transfers between stages",
    "offload": "copies to the hosts, and what these update",
    "once a step": "what comes once a step: synchronising gradients and the optimizer",
    "idle": "waiting: the pipeline fills and drains, and its stages differ in length",
}
_TIGHT = 0.9
"""A device whose memory is filled by more than this share is said to be nearly full."""


@final
@dataclasses.dataclass(frozen=True)
class WhatIf:
    """A change to a plan, with the seconds that a step would take after it."""

    change: str
    step_s: float


@final
@dataclasses.dataclass(frozen=True)
class Explanation:
    """An explanation of why a step of a plan takes as long as it does."""

    plan: Plan  # the plan, with what is run once a host is lost, if that is known
    bound: str  # a sentence that says on what most of the step is spent
    parts: Mapping[str, float]  # seconds of the step that the average device computes, waits ..., by the part's name
    notes: tuple[str, ...]  # sentences about the slowest stage and the fullest memory
    what_if: tuple[WhatIf, ...]  # changes to the plan with the step after each, the one that helps most first
    settings: tuple[OtherSetting, ...] = ()  # each changed alone, that its framework can run, what helps most first
    would_fit: str = ""  # a sentence on what would fit, where the plan doesn't fit into memory
    sensitivities: tuple[Sensitivity, ...] = ()  # on the speed of devices, links and layers, what helps most first


def explain(
    plan: Plan, kept: Kept | None = None, *, calibration: str | os.PathLike[str] | Calibration | None = None
) -> Explanation:
    """Returns an explanation of why a plan's step takes as long as it does, and of what would help; nothing is traced.

    With the record of what the plan was made from it also says how the step depends on bandwidths, types of devices and
    layers, and which plan would be the best if one of them were twice as good; by another calibration the plan is
    priced anew, and its notes say so. If all devices share one CPU, none waits idly. Raises ValueError if the record is
    of another plan, or the plan was priced by other models.
    """
    if kept is not None and calibration is not None:
        from alpa_dejavu.planning.changed.kept_task import repriced

        plan, kept = repriced(plan, kept, calibration)
    if kept is not None:
        from alpa_dejavu.planning.changed.replanning import prepared

        plan = prepared(plan, kept, calibration)
    parts = breakdown(plan)
    largest = max(parts, key=lambda part: parts[part])
    share = 100 * parts[largest] / plan.step_s
    options = sorted(_what_ifs(plan), key=lambda option: option.step_s)
    slopes, better = _slopes(plan, kept, calibration)
    return Explanation(
        plan=plan,
        bound=f"{share:.0f} % of the step is {_BOUNDS[largest]}",
        parts=parts,
        notes=(*_slowest(plan), *_fullest(plan), *_offloaded(plan), *better),
        what_if=tuple(option for option in options if option.step_s < plan.step_s * (1 - 1e-3)),
        settings=tuple(other_settings(plan, calibration)),
        would_fit=what_would_fit(plan, calibration),
        sensitivities=slopes,
    )


def _slopes(
    plan: Plan, kept: Kept | None, calibration: str | os.PathLike[str] | Calibration | None
) -> tuple[tuple[Sensitivity, ...], list[str]]:
    """Returns the derivatives of the step, and a sentence if there is a better plan already."""
    own = sensitivities(plan)
    if kept is None:
        return own, []
    from alpa_dejavu.report.upgrades import upgrades

    kinds = upgrades(plan, kept, calibration=calibration)
    # Of what both know, what is kept knows more.
    by_name = {sensitivity.what: sensitivity for sensitivity in (*own, *kinds.by_figure)}
    better = []
    if (best := kinds.now) is not None:
        better.append(f"the best plan as things are takes {units.seconds(best.step_s)}: {stages_text(best)}")
    if (best := kinds.with_memory) is not None:
        better.append(
            f"with twice the memory on each device the best plan takes {units.seconds(best.step_s)}, "
            f"{100 * (1 - best.step_s / plan.step_s):.0f} % less: {stages_text(best)}"
        )
    return ranked(by_name.values()), better


def _slowest(plan: Plan) -> Iterator[str]:
    on = plan.stages_on
    seconds = [sum(plan.stages[n].cost_s for n in stages) for stages in on]
    slowest, mean = max(range(len(seconds)), key=seconds.__getitem__), sum(seconds) / len(seconds)
    if len(seconds) > 1 and seconds[slowest] > 1.02 * mean:
        *others, last = map(str, on[slowest])
        which, them = f"stage {last} is", "it"
        if others:
            which, them = f"stages {', '.join(others)} and {last} (chunks of the same devices) are", "them"
        yield (
            f"{which} the slowest: {units.seconds(seconds[slowest])} for a micro-batch, "
            f"{100 * (seconds[slowest] / mean - 1):.0f} % above the average stage; the others wait for {them}"
        )


def _fullest(plan: Plan) -> Iterator[str]:
    shares = [stage.memory_bytes / stage.memory_limit_bytes for stage in plan.stages if stage.memory_limit_bytes > 0]
    if not shares:
        return
    fullest = max(range(len(shares)), key=shares.__getitem__)
    if _TIGHT < shares[fullest] <= 1:
        yield f"stage {fullest} nearly fills its memory; faster choices may be ruled out by that"


def _offloaded(plan: Plan) -> Iterator[str]:
    by_text: dict[str, list[str]] = {}
    for n, stage in enumerate(plan.stages):
        offload = stage.offload
        if offload is None:
            continue
        copies_s = plan.num_micro_batches * (offload.forward_s + offload.backward_s)
        places = [("its host's memory", offload.host_bytes, offload.host_limit_bytes)]
        places += [("its host's drives", offload.nvme_bytes, offload.nvme_limit_bytes)] if offload.nvme_bytes else []
        needs = " and ".join(f"{units.size(used)} of {units.size(has)} of {where}" for where, used, has in places)
        lack = f", {units.size(offload.missing_bytes)} are missing" if offload.missing_bytes else ""
        text = (
            f" offloads {offload.shares.text}: copies in its passes take {units.seconds(copies_s)} of a step, "
            f"the hosts' update with its copies {units.seconds(offload.step_s)}; for each device it takes {needs}{lack}"
        )
        by_text.setdefault(text, []).append(f"stage {n}")
    yield from (name_ranges(stages) + text for text, stages in by_text.items())


def _what_ifs(plan: Plan) -> Iterator[WhatIf]:
    step, count = PlanStep(plan), plan.num_micro_batches
    times = step.times

    def after(change: str, stages: Iterable[StageTimes], micro_batches: int = count) -> WhatIf:
        return WhatIf(change, step.seconds(tuple(stages), micro_batches))

    yield after("devices that compute twice as fast", (scaled(stage, computing=0.5) for stage in times))
    yield after("links inside of stages twice as fast", (scaled(stage, links=0.5) for stage in times))
    if plan.offloads:
        yield after("offload that takes no time", map(_without_copies, times))
    yield after("links between stages twice as fast", (scaled(stage, sends=(0.5, 0.5)) for stage in times))
    if len(times) > 1:
        yield after("stages that all take equally long", _evened(times))
        if plan.batch is None or plan.batch % (2 * count) == 0:
            halved = (scaled(stage, computing=0.5, links=0.5, sends=(0.5, 0.5), once=1.0) for stage in times)
            yield after(f"{2 * count} micro-batches, if halves of them take half as long", halved, 2 * count)


def _without_copies(times: StageTimes) -> StageTimes:
    """Returns a stage's times without those of copies to its hosts, and of the hosts' updates."""
    return dataclasses.replace(
        times,
        forward_s=times.forward_s - times.forward_copies_s,
        backward_s=times.backward_s - times.backward_copies_s,
        forward_collective_s=times.forward_collective_s - times.forward_copies_s,
        backward_collective_s=times.backward_collective_s - times.backward_copies_s,
        per_step_s=times.per_step_s - times.host_step_s,
        forward_copies_s=0.0,
        backward_copies_s=0.0,
        host_step_s=0.0,
    )


def _evened(times: Sequence[StageTimes]) -> list[StageTimes]:
    """Returns all stages with the average forward and backward, weighted by their devices."""
    devices = sum(stage.devices for stage in times)
    forward = sum(stage.forward_s * stage.devices for stage in times) / devices
    backward = sum(stage.backward_s * stage.devices for stage in times) / devices
    names = ("forward_collective_s", "backward_collective_s", "forward_copies_s", "backward_copies_s")
    parts: dict[str, Any] = dict.fromkeys(names, 0.0)
    return [dataclasses.replace(stage, forward_s=forward, backward_s=backward, **parts) for stage in times]
