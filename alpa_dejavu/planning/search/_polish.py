"""Plans made better one change at a time, by the step that a simulation says they take.

A slicer's closed form takes transfers for hidden and stages for alike, so that the cut that it likes best may be a
layer off the one that is fastest, and of unlike hosts two stages may each be faster on the other's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from alpa_dejavu._util.ties import TOLERANCE, least
from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.planning.search._candidate import Candidate, fits, fitting, simulated
from alpa_dejavu.problem import NoPlanError, StageChoice

__all__ = ["polished"]

_TRIES = 400
"""So many cuts into chunks are simulated at most."""
_FAR_TASKS = 1024
"""Layers move between any two stages if their number squared times the micro-batches is no more than this."""
_TASKS = 4096
"""A step of more stages times micro-batches takes too long to be simulated for every cut."""
_ALL_ORDERS, _PAIRS = 6, 16
"""Up to so many hosts are tried in every order, and up to so many have each two of them exchanged."""


def polished(found: Candidate, configs: bool = False) -> Candidate:
    """Returns a candidate plan, improved until moving one layer from a stage to another no longer shortens its
    simulated step, nor does exchanging unlike hosts: any of at most 6 hosts, two of at most 16.

    The stages between these two move along. With `configs` a stage may also get another submesh of equally many
    devices, or another config (logical mesh, remat, ZeRO). In a plan with many stages and micro-batches layers move to
    neighbouring stages alone; one with more than 4096 stages times micro-batches is returned as it is.
    """
    tasks = len(found.stages) * found.run.num_micro_batches
    if tasks > _TASKS:
        return found
    if found.chunks:
        return _with_better_chunks(found)
    farthest = len(found.stages) if tasks * len(found.stages) <= _FAR_TASKS else 1
    while others := [*_moved(found, farthest), *_exchanged(found), *(_otherwise(found) if configs else ())]:
        best = least(others, key=lambda one: one.step_s)
        if best.step_s >= found.step_s * (1 - TOLERANCE):
            break
        found = best
    return found


def _moved(found: Candidate, farthest: int) -> Iterator[Candidate]:
    """The candidate with a layer moved from a stage to another one not too far from it, where that is allowed."""
    for stages in _moved_layers(found.stages, farthest):
        yield from _allowed(found, stages)


def _exchanged(found: Candidate) -> Iterator[Candidate]:
    """The candidate with unlike hosts exchanged: two of them, or of few hosts all in any order."""
    space, kinds = found.space, kinds_of(found.cluster)
    if space.hosts is None:
        return
    of_sites = [tuple(sorted(kinds[host] for host in hosts)) for hosts in space.hosts]
    sites = {key: s for s, key in enumerate(zip(space.submeshes, of_sites, strict=True))}
    known = {tuple(of_sites[stage.submesh] for stage in found.stages)}
    for order in _orders(len(kinds)):
        on = tuple(tuple(sorted(kinds[order[host]] for host in hosts)) for hosts in found.placed)
        if on not in known:
            known.add(on)
            keys = [(space.submeshes[stage.submesh], its) for stage, its in zip(found.stages, on, strict=True)]
            if all(key in sites for key in keys):
                pairs = zip(found.stages, keys, strict=True)
                yield from _allowed(found, tuple(dataclasses.replace(one, submesh=sites[key]) for one, key in pairs))


def _orders(count: int) -> Iterator[Sequence[int]]:
    """Yields which host takes the place of each of so many hosts."""
    if count <= _ALL_ORDERS:
        yield from itertools.permutations(range(count))
        return
    for a, b in itertools.combinations(range(count if count <= _PAIRS else 0), 2):
        order = list(range(count))
        order[a], order[b] = b, a
        yield order


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
            if one.placed and (made := fitting(one)) is not None:
                yield made


def _with_better_chunks(found: Candidate) -> Candidate:
    """The candidate with layers moved from chunk to chunk as long as that shortens its step; each gain is kept."""
    others, left = _moved_layers(found.stages, len(found.stages)), _TRIES
    while left and (other := next(others, None)) is not None:
        made, left = simulated(dataclasses.replace(found, chunks=other)), left - 1
        if made.step_s < found.step_s * (1 - TOLERANCE) and fits(made):
            found, others = made, _moved_layers(made.stages, len(made.stages))
    return found


def _moved_layers(stages: Sequence[StageChoice], farthest: int) -> Iterator[tuple[StageChoice, ...]]:
    """The stages with a layer less in one and a layer more in another, neighbours first; those between move along."""
    cut, count = [0, *(stage.last + 1 for stage in stages)], len(stages)
    for apart in range(1, min(farthest, count - 1) + 1):
        for first in range(1, count - apart + 1):
            for by in (-1, 1):
                ends = [n + by if first <= place < first + apart else n for place, n in enumerate(cut)]
                if all(a < b for a, b in itertools.pairwise(ends)):
                    pairs = zip(stages, itertools.pairwise(ends), strict=True)
                    yield tuple(dataclasses.replace(one, first=a, last=b - 1) for one, (a, b) in pairs)
