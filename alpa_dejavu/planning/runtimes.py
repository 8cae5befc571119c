"""Training frameworks that can run a plan, and what keeps the others from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import final

from alpa_dejavu.problem import OFFLOADED, Plan
from alpa_dejavu.problem.run import ALPA_SCHEDULES, SCHEDULES
from alpa_dejavu.schedules import schedule_kind

__all__ = [
    "RUNTIMES", "Hindrance", "Runtime", "check_schedule_of", "hindrances", "runtimes_of", "runtimes_text",
    "schedules_of",
]  # fmt: skip


@final
@dataclasses.dataclass(frozen=True)
class Runtime:
    """A training framework, as far as it limits which plans it can run.

    Attributes:
        unlike_submeshes: whether stages may have unlike numbers of devices or logical meshes.
        unlike_remat: whether some stages may compute activations again and others not.
        zero: the ZeRO levels that stages may have under a pipeline.
        offload: the kinds of tensors that it can offload to the memory of hosts.
        drives: whether it can offload them to NVMe drives, too.
        streams: whether its devices communicate while they compute.
    """

    unlike_submeshes: bool = False
    unlike_remat: bool = True
    zero: tuple[int, ...] = (0, 2, 3)
    offload: tuple[str, ...] = ()
    drives: bool = False
    streams: bool = True


RUNTIMES = {
    "alpa": Runtime(unlike_submeshes=True, streams=False),
    "megatron": Runtime(unlike_remat=False, zero=(0, 2), offload=("optimizer",)),
    "deepspeed": Runtime(zero=(0,), offload=OFFLOADED, drives=True),
    "galvatron": Runtime(),
    "torchtitan": Runtime(),
    "jaxpp": Runtime(),
}
"""By their names; as far as their documentation said in November 2026."""


def runtimes_of(plan: Plan) -> dict[str, str]:
    """Returns for each training framework in a few words why it can't run a plan; empty for those that can.

    A plan of several unlike pipelines, or of another strategy that Alpa can't run, isn't looked at more closely: no
    framework is said to run it.
    """
    found = {name: next(hindrances(plan, name, limits), None) for name, limits in RUNTIMES.items()}
    return {name: "" if first is None else first.why for name, first in found.items()}


def runtimes_text(plan: Plan) -> str:
    """Returns as text which training frameworks can run a plan, and what keeps the others from it."""
    by_reason: dict[str, list[str]] = {"": []}
    for name, why in runtimes_of(plan).items():
        by_reason.setdefault(why, []).append(name)
    can = ", ".join(by_reason.pop("")) or "none"
    return "; ".join([can, *(f"not {', '.join(names)}: {why}" for why, names in by_reason.items())])


def schedules_of(runtime: str) -> tuple[str, ...]:
    """Returns the names of the schedules that a training framework has.

    Raises:
        ValueError: the framework isn't known.
    """
    if runtime not in RUNTIMES:
        raise ValueError(f"runtime is {runtime!r}, but must be one of {', '.join(map(repr, RUNTIMES))}")
    return tuple(name for name in SCHEDULES if runtime in schedule_kind(name).runtimes)


def check_schedule_of(runtime: str, schedule: str) -> None:
    """Checks that a training framework has a schedule; a framework that isn't known may have any.

    Raises:
        ValueError: it hasn't; names those that it has.
    """
    if runtime in RUNTIMES and runtime not in schedule_kind(schedule).runtimes:
        has = ", ".join(schedules_of(runtime))
        raise ValueError(
            f"schedule is {schedule!r}, but must be one that {runtime} has: {has}; give one of these, or leave the "
            "runtime out"
        )


@final
@dataclasses.dataclass(frozen=True)
class Hindrance:
    """A reason why a training framework can't run a plan.

    Attributes:
        why: the rule that the plan breaks, with the stage that breaks it, in a few words.
        remedy: what would do instead.
    """

    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.why}; {self.remedy}"


def hindrances(plan: Plan, name: str, limits: Runtime) -> Iterator[Hindrance]:
    """Yields the reasons why a training framework can't run a plan; none if it can.

    Args:
        plan: the plan.
        name: the framework's name, by which schedules know it.
        limits: what it can run.
    """
    again = f"plan again with --for {name}"
    if name not in schedule_kind(plan.schedule).runtimes:
        has = ", ".join(schedules_of(name)) if name in RUNTIMES else "another schedule"
        yield Hindrance(f"no {plan.schedule} there", f"plan with one of {has}")
    told = plan.schedule not in ALPA_SCHEDULES or plan.offloads or plan.streams
    if not plan.runs_on_alpa and (plan.strategy or not told):
        what = plan.strategy or "reduction servers"
        yield Hindrance(f"no {what} there", "plan by this package's own search, without reduction servers")
    if plan.streams and not limits.streams:
        yield Hindrance("no overlap of communication there", "plan with --overlap none")
    first = plan.stages[0]
    for n, stage in enumerate(plan.stages):
        meshes = [(one.submesh.num_devices, tuple(one.logical_mesh)) for one in (first, stage)]
        if not limits.unlike_submeshes and meshes[0] != meshes[1]:
            yield Hindrance(f"stages 0 and {n} have unlike meshes", again)
        if not limits.unlike_remat and first.remat != stage.remat:
            yield Hindrance(f"stages 0 and {n} have unlike remat", again)
        if len(plan.on_submeshes) > 1 and stage.zero not in limits.zero:
            levels = " or ".join(map(str, limits.zero))
            yield Hindrance(f"stage {n} has ZeRO {stage.zero} in a pipeline", f"plan with ZeRO {levels}")
        there = stage.offloaded
        kinds = [kind for kind, share in zip(OFFLOADED, there.shares, strict=True) if share]
        lacking = [kind for kind in kinds if kind not in limits.offload]
        if lacking or (there.any and there.place == "nvme" and not limits.drives):
            what = lacking[0] if lacking else "anything to nvme"
            yield Hindrance(f"no offload of {what} there" if lacking else "no offload to nvme there", again)
        if there.any and len(plan.on_submeshes) > 1 and limits.zero == (0,):
            yield Hindrance("no offload in a pipeline there", "offload nothing, or plan for one stage")
        parts = [kind for kind, share in zip(OFFLOADED, there.shares, strict=True) if 0 < share < 1]
        if any(kind != "optimizer" for kind in parts):
            kind = next(kind for kind in parts if kind != "optimizer")
            yield Hindrance(f"no part of {kind} alone is offloaded there", "offload all of it, or nothing")
