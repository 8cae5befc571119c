"""Contingencies in plan files: stages are written once for all hosts whose loss is met in the same way."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, TypeAlias, final

from alpa_dejavu._util.dataclass_format import Inline, Key
from alpa_dejavu._util.format_fields import SecondsAboveZero, Text, at_most, listed, stated, whole
from alpa_dejavu.problem import Contingency, MicroBatches, Moves, StagePlan, Stages

_Hosts: TypeAlias = Annotated[tuple[Text, ...], listed("a list of host names", min_length=1)]


@final
@dataclasses.dataclass(frozen=True)
class FallbackStages:
    """The stages that are run once one of several hosts is lost; their hosts are those of the first of these."""

    step_s: Annotated[SecondsAboveZero, Key("iteration_time_s")]
    num_micro_batches: MicroBatches
    stages: Stages


@final
@dataclasses.dataclass(frozen=True)
class LostHost:
    """The loss of a host: the number of the fallback's stages, the hosts that run each, and what moves for it."""

    plan: Annotated[int, whole("a whole number: which of contingencies.plans")]
    hosts: Annotated[tuple[_Hosts, ...], listed("a list of host names for each stage")]
    unused: Annotated[tuple[Text, ...], listed("a list of host names")]
    moves: Inline[Moves]


@final
@dataclasses.dataclass(frozen=True)
class Fallbacks:
    """All fallbacks of a plan, each once, and the hosts whose loss they are for."""

    plans: Annotated[tuple[FallbackStages, ...], listed("a list of at least one plan", min_length=1)]
    hosts: Annotated[Mapping[str, LostHost], stated("an object of hosts and what is run without each"), at_most(10_000)]


def fallbacks_of(contingencies: Mapping[str, Contingency]) -> Fallbacks:
    """Returns a plan's contingencies, by the name of the lost host, as its file has them."""
    plans: list[FallbackStages] = []
    numbers: dict[object, int] = {}
    hosts: dict[str, LostHost] = {}
    for lost, contingency in contingencies.items():
        key = contingency.step_s, contingency.num_micro_batches, tuple(map(_shape, contingency.stages))
        if key not in numbers:
            numbers[key] = len(plans)
            plans.append(FallbackStages(contingency.step_s, contingency.num_micro_batches, contingency.stages))
        on = tuple(stage.hosts for stage in contingency.stages)
        hosts[lost] = LostHost(numbers[key], on, contingency.unused, contingency.moves)
    return Fallbacks(tuple(plans), hosts)


def _shape(stage: StagePlan) -> tuple[object, ...]:
    return stage.layers, stage.submesh, stage.logical_mesh, stage.remat, stage.zero


def contingencies_of(fallbacks: Fallbacks) -> dict[str, Contingency]:
    """Returns a plan's contingencies, by the name of the lost host, from what its file has."""
    contingencies = {}
    for lost, host in fallbacks.hosts.items():
        plan = fallbacks.plans[host.plan]
        stages = tuple(dataclasses.replace(stage, hosts=on) for stage, on in zip(plan.stages, host.hosts, strict=True))
        contingencies[lost] = Contingency(stages, plan.step_s, plan.num_micro_batches, host.moves, host.unused)
    return contingencies
