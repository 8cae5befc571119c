"""What bounds a plan, and what would help: the step simulated again with one thing changed at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import final

from alpa_dejavu.breakdown import breakdown
from alpa_dejavu.problem import Plan, StagePlan
from alpa_dejavu.simulate import StageTimes, simulate

__all__ = ["Explanation", "WhatIf", "explain"]

_BOUNDS = {
    "computing": "the devices' computing",
    "collectives": "collectives among the devices of a stage",
    "transfers": "transfers between stages",
    "once a step": "what comes once a step: synchronising gradients and the optimizer",
    "idle": "waiting: the pipeline fills and drains, and its stages differ in length",
}
_TIGHT = 0.9
"""A device whose memory is filled by more than this share is said to be nearly full."""


@final
@dataclasses.dataclass(frozen=True)
class WhatIf:
    """One change, and the seconds of a step that it would have."""

    change: str
    step_s: float


@final
@dataclasses.dataclass(frozen=True)
class Explanation:
    """Why a plan takes as long as it does.

    Attributes:
        bound: a sentence: what most of the step is.
        parts: seconds of the average device, by `breakdown.PARTS`.
        notes: sentences about the slowest stage and the fullest memory.
        what_if: changes, the one that helps most first.
    """

    bound: str
    parts: Mapping[str, float]
    notes: tuple[str, ...]
    what_if: tuple[WhatIf, ...]


def explain(plan: Plan) -> Explanation:
    """Explains a plan by its own figures; nothing is traced.

    Where all devices share one CPU nothing waits idly: a change saves what it takes out of the average device's work.
    """
    parts = breakdown(plan)
    largest = max(parts, key=lambda part: parts[part])
    share = 100 * parts[largest] / plan.step_s
    options = sorted(_what_ifs(plan, parts), key=lambda option: option.step_s)
    return Explanation(
        bound=f"{share:.0f} % of the step is {_BOUNDS[largest]}",
        parts=parts,
        notes=(*_slowest(plan), *_fullest(plan)),
        what_if=tuple(option for option in options if option.step_s < plan.step_s * (1 - 1e-3)),
    )


def _slowest(plan: Plan) -> Iterator[str]:
    seconds = [stage.cost_s for stage in plan.stages]
    slowest, mean = max(range(len(seconds)), key=seconds.__getitem__), sum(seconds) / len(seconds)
    if len(seconds) > 1 and seconds[slowest] > 1.02 * mean:
        yield (
            f"stage {slowest} is the slowest: {seconds[slowest]:.4g} s for a micro-batch, "
            f"{100 * (seconds[slowest] / mean - 1):.0f} % above the average stage; the others wait for it"
        )


def _fullest(plan: Plan) -> Iterator[str]:
    shares = [stage.memory_bytes / stage.memory_limit_bytes for stage in plan.stages if stage.memory_limit_bytes > 0]
    if not shares:
        return
    fullest = max(range(len(shares)), key=shares.__getitem__)
    stage = plan.stages[fullest]
    headroom = stage.memory_limit_bytes - stage.memory_bytes
    figures = f"{stage.memory_bytes / 2**30:.2f} of {stage.memory_limit_bytes / 2**30:.2f} GiB"
    if headroom < 0:
        helps = [] if stage.remat == "layer" else ["remat"]
        helps += [] if stage.zero else ["a ZeRO level of 2 or 3"]
        helps += ["more micro-batches", "more devices"]
        missing = f"{-headroom:.0f} bytes are missing"
        yield f"stage {fullest} doesn't fit: {figures}, {missing}; {', '.join(helps)} would help"
    elif shares[fullest] > _TIGHT:
        yield f"stage {fullest} nearly fills its memory: {figures}; faster choices may be ruled out by that"
    else:
        yield f"memory sets no limit: the fullest, stage {fullest}, has {figures}"


def _what_ifs(plan: Plan, parts: Mapping[str, float]) -> Iterator[WhatIf]:
    shared = _shares_cpu(plan)
    times = [_times(plan, n) for n in range(len(plan.stages))]
    count = plan.num_micro_batches
    now = simulate(times, count, plan.schedule).step_s

    def changed(stages: Sequence[StageTimes], saved_s: float, micro_batches: int = count) -> float:
        if shared or now <= 0:
            return plan.step_s - saved_s
        return plan.step_s * simulate(stages, micro_batches, plan.schedule).step_s / now

    half = parts["computing"] / 2
    yield WhatIf("devices that compute twice as fast", changed([_scaled(t, computing=0.5) for t in times], half))
    half = parts["collectives"] / 2
    yield WhatIf("links inside of stages twice as fast", changed([_scaled(t, links=0.5) for t in times], half))
    half = parts["transfers"] / 2
    yield WhatIf("links between stages twice as fast", changed([_scaled(t, sends=0.5) for t in times], half))
    if len(times) > 1:
        yield WhatIf("stages that all take equally long", changed(_evened(times), 0.0))
        if plan.batch is None or plan.batch % (2 * count) == 0:
            halved = [_scaled(t, computing=0.5, links=0.5, sends=0.5, once=1.0) for t in times]
            change = f"{2 * count} micro-batches, if halves of them take half as long"
            yield WhatIf(change, changed(halved, 0.0, 2 * count))


def _shares_cpu(plan: Plan) -> bool:
    return plan.cluster.endswith(" x local-cpu") or plan.cluster.startswith("CPU cluster")


def _times(plan: Plan, n: int) -> StageTimes:
    """What the simulation needs of a stage; it sends what its neighbours take in."""
    stage, stages = plan.stages[n], plan.stages
    collective = min(stage.forward_collective_s, stage.forward_s)
    return StageTimes(
        forward_s=stage.forward_s,
        backward_s=stage.backward_s,
        per_step_s=stage.per_step_s,
        forward_send_s=stages[n + 1].forward_boundary_s if n + 1 < len(stages) else 0.0,
        backward_send_s=_backward_boundary_s(stages[n - 1]) if n else 0.0,
        forward_collective_s=collective,
        backward_collective_s=min(max(stage.collective_s - collective, 0.0), stage.backward_s),
        synchronisation_s=min(stage.synchronisation_s, stage.per_step_s),
        devices=stage.submesh.num_devices,
    )


def _backward_boundary_s(stage: StagePlan) -> float:
    return max(stage.boundary_s - stage.forward_boundary_s, 0.0)


def _scaled(
    times: StageTimes, computing: float = 1.0, links: float = 1.0, sends: float = 1.0, once: float | None = None
) -> StageTimes:
    """The stage with its parts taking these shares of their time; `once`: of what comes once a step, if another."""
    forward, backward = times.forward_collective_s * links, times.backward_collective_s * links
    update = (times.per_step_s - times.synchronisation_s) * (computing if once is None else once)
    synchronisation = times.synchronisation_s * (links if once is None else once)
    return dataclasses.replace(
        times,
        forward_s=(times.forward_s - times.forward_collective_s) * computing + forward,
        backward_s=(times.backward_s - times.backward_collective_s) * computing + backward,
        per_step_s=update + synchronisation,
        forward_collective_s=forward,
        backward_collective_s=backward,
        synchronisation_s=synchronisation,
        forward_send_s=times.forward_send_s * sends,
        backward_send_s=times.backward_send_s * sends,
    )


def _evened(times: Sequence[StageTimes]) -> list[StageTimes]:
    """All stages with the average forward and backward, weighted by their devices."""
    devices = sum(stage.devices for stage in times)
    forward = sum(stage.forward_s * stage.devices for stage in times) / devices
    backward = sum(stage.backward_s * stage.devices for stage in times) / devices
    return [
        dataclasses.replace(
            stage, forward_s=forward, backward_s=backward, forward_collective_s=0.0, backward_collective_s=0.0
        )
        for stage in times
    ]
