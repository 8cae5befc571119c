"""Finds hosts that have become slow, by what their stages take against the others'.

What a plan is wrong by is common to its stages, and so is what slows all hosts; a straggler's stages stand out.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import final

import numpy as np

from alpa_dejavu._util.range_sums import FloatArray
from alpa_dejavu.planning.changed.kept import Kept
from alpa_dejavu.planning.changed.replanning import Replanned, replan
from alpa_dejavu.problem import Plan

_AGREE = 0.75
"""The share of the steps that must show a host slow: a hiccup isn't a straggler."""


@final
@dataclasses.dataclass(frozen=True)
class Straggler:
    """A host that takes longer than it should, or several that can't be told apart."""

    hosts: tuple[str, ...]  # the host's name, or several if they share all their stages and can't be told apart
    factor: float  # how many times as long as they should its stages take, if other hosts' take as long as they should
    stages: tuple[int, ...]  # the indices of these stages

    def __str__(self) -> str:
        which = " or ".join(self.hosts)
        return f"{which} takes {self.factor:.2f} times as long as it should (stages {', '.join(map(str, self.stages))})"


def expected_s(plan: Plan) -> tuple[float, ...]:
    """Returns the seconds that each stage is predicted to compute in a step, in all micro-batches and once a step."""
    return tuple(
        plan.num_micro_batches * (stage.compute_s + stage.collective_s) + stage.per_step_s for stage in plan.stages
    )


def stragglers(
    plan: Plan,
    steps_s: Sequence[Sequence[float]],
    *,
    usual_s: Sequence[float] | None = None,
    least_factor: float = 1.25,
    least_steps: int = 5,
) -> tuple[Straggler, ...]:
    """Returns the hosts whose stages take at least `least_factor` times as long as expected in most steps, compared
    with other hosts' stages; the slowest first.

    `steps_s` are the seconds that each of S stages computed in at least `least_steps` steps, without waiting, (steps,
    S); `usual_s` those when all was well, (S,), without which the plan's prediction stands (which may be wrong for one
    of two hosts). ValueError for other shapes, fewer steps, and seconds that aren't finite and above 0.
    """
    measured, usual = np.asarray(steps_s, dtype=np.float64), np.asarray(usual_s or expected_s(plan), dtype=np.float64)
    count = len(plan.stages)
    if measured.ndim != 2 or measured.shape[1] != count or usual.shape != (count,):
        raise ValueError(f"steps_s is {measured.shape} and usual_s {usual.shape}; the plan has {count} stages")
    if len(measured) < least_steps:
        raise ValueError(f"{len(measured)} steps are too few to tell a straggler; note at least {least_steps}")
    if not (np.isfinite(measured) & (measured > 0)).all() or not (np.isfinite(usual) & (usual > 0)).all():
        raise ValueError("what a stage computes for must be finite seconds above 0, in every step")
    if not (math.isfinite(least_factor) and least_factor > 1):
        raise ValueError(f"least_factor is {least_factor!r}, but must be a finite number above 1")
    ratios = measured / usual
    suspects = [_straggler(hosts, own, ratios, least_factor) for hosts, own in _suspects(plan)]
    return tuple(sorted((slow for slow in suspects if slow is not None), key=lambda slow: -slow.factor))


def _suspects(plan: Plan) -> list[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Returns hosts, those together that share all their stages, with these stages."""
    alike = defaultdict[tuple[int, ...], list[str]](list)
    for host in dict.fromkeys(host for stage in plan.stages for host in stage.hosts):
        alike[tuple(n for n, stage in enumerate(plan.stages) for name in stage.hosts if name == host)].append(host)
    return [(tuple(hosts), own) for own, hosts in alike.items()]


def _straggler(
    hosts: tuple[str, ...], own: tuple[int, ...], ratios: FloatArray, least_factor: float
) -> Straggler | None:
    """Returns a straggler if all stages of some hosts are slow in most steps; the slowest host sets a stage's time."""
    others = [n for n in range(ratios.shape[1]) if n not in own]
    if not others:
        return None
    against = ratios[:, list(own)].min(axis=1) / np.median(ratios[:, others], axis=1)
    factor = float(np.median(against))
    if factor < least_factor or np.mean(against >= least_factor) < _AGREE:
        return None
    return Straggler(hosts, factor, own)


def planned_around(plan: Plan, kept: Kept, slow: Sequence[Straggler]) -> Replanned:
    """Returns the plan that would be chosen if stragglers' devices are as slow as measured, those of all hosts that
    can't be told apart. Raises ValueError for hosts or a record of another plan, and NoPlanError if nothing fits.
    """
    factors: dict[str, float] = {}
    for straggler in slow:
        for host in straggler.hosts:
            factors[host] = max(factors.get(host, 1.0), straggler.factor)
    return replan(plan, kept, slow=factors)
