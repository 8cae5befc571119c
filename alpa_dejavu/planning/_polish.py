"""Plans made better one cut at a time, by the step that a simulation says they take.

A slicer's closed form takes transfers for hidden and stages for alike, so that the cut that it likes best may be a
layer off the one that is fastest.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator

from alpa_dejavu._util.ties import TOLERANCE, least
from alpa_dejavu.planning._candidate import Candidate, simulated
from alpa_dejavu.problem import NoPlanError, StageChoice

__all__ = ["polished"]

_TASKS = 4096
"""A step of more stages times micro-batches takes too long to be simulated for every cut."""


def polished(found: Candidate, configs: bool = False) -> Candidate:
    """Returns a candidate plan, improved until moving one layer to a neighbouring stage no longer shortens its
    simulated step.

    With `configs` a stage may also get another submesh of equally many devices, or another config (logical mesh, remat,
    ZeRO). A plan with more than 4096 stages times micro-batches is returned as it is.
    """
    if len(found.stages) * found.run.num_micro_batches > _TASKS:
        return found
    while others := [*_moved(found), *(_otherwise(found) if configs else ())]:
        best = least(others, key=lambda one: one.step_s)
        if best.step_s >= found.step_s * (1 - TOLERANCE):
            break
        found = best
    return found


def _moved(found: Candidate) -> Iterator[Candidate]:
    """The candidate with each cut a layer earlier, and a layer later, where that is allowed."""
    stages = found.stages
    for n, (before, after) in enumerate(itertools.pairwise(stages)):
        for by in (-1, 1):
            one = dataclasses.replace(before, last=before.last + by)
            other = dataclasses.replace(after, first=after.first + by)
            yield from _allowed(found, (*stages[:n], one, other, *stages[n + 2 :]))


def _otherwise(found: Candidate) -> Iterator[Candidate]:
    """The candidate with each stage on each other submesh of as many devices, with each of its configs."""
    sizes = [submesh.num_devices for submesh in found.space.submeshes]
    for n, stage in enumerate(found.stages):
        for s, row in enumerate(found.space.configs):
            for c in range(len(row)) if sizes[s] == sizes[stage.submesh] else ():
                if (s, c) != (stage.submesh, stage.config):
                    other = dataclasses.replace(stage, submesh=s, config=c)
                    yield from _allowed(found, (*found.stages[:n], other, *found.stages[n + 1 :]))


def _allowed(found: Candidate, stages: tuple[StageChoice, ...]) -> Iterator[Candidate]:
    """The candidate with these stages, if memory does for them and hosts can be filled by them."""
    cost_s = found.costs.problem.total_s(stages)
    if math.isfinite(cost_s):
        slicing = dataclasses.replace(found.slicing, stages=stages, cost_s=cost_s)
        same = [stage.submesh for stage in stages] == [stage.submesh for stage in found.stages]
        one = dataclasses.replace(found, slicing=slicing, hosts=found.hosts if same else None)
        with contextlib.suppress(NoPlanError):
            if one.placed:
                yield simulated(one)
