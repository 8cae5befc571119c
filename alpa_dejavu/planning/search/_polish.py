"""Plans made better one change at a time, or under other schedules, by the steps that simulations say they take.

A slicer's closed form takes transfers for hidden and stages for alike, so that the cut that it likes best may be a
layer off the one that is fastest, and of unlike hosts two stages may each be faster on the other's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence

from alpa_dejavu._util.ties import TOLERANCE, least, ordered
from alpa_dejavu.clusters.host_classes import kinds_of
from alpa_dejavu.planning.search._candidate import Candidate, best_first, fits, fitting, simulated
from alpa_dejavu.problem import NoPlanError, StageChoice

_TRIES = 400
"""So many cuts into chunks are simulated at most."""
_FAR_TASKS = 1024
"""Layers move between any two stages if their number squared times the micro-batches is no more than this."""
_TASKS = 4096
"""A step of more stages times micro-batches takes too long to be simulated for every cut."""
_ALL_ORDERS, _PAIRS = 6, 16
"""Up to so many hosts are tried in every order, and up to so many have each two of them exchanged."""
ANY_SCHEDULE = (
    "1f1b_overlap_friendly", "1f1b", "gpipe", "interleaved", "interleaved_3", "interleaved_4", "zb_h1", "zb_v",
    "v_half", "v_min", "dualpipe_v",
)  # fmt: skip
"""The schedules that train alike: they take all gradients of a step by the same weights. A search begins with the
first."""
_SHAPES, _CLOSE, _POLISHED = 8, 8, 3
"""So many of the best shapes are looked at under each schedule; so many of the best plans among those are simulated,
and polished."""


def polished(candidate: Candidate, configs: bool = False) -> Candidate:
    """Returns a candidate plan, improved until moving one layer from a stage to another no longer shortens its
    simulated step, nor does exchanging unlike hosts: any of at most 6 hosts, two of at most 16.

    The stages between these two move along. With `configs` a stage may also get another submesh of equally many
    devices, or another config (logical mesh, remat, ZeRO). In a plan with many stages and micro-batches layers move to
    neighbouring stages alone; one with more than 4096 stages times micro-batches is returned as it is.
    """
    tasks = len(candidate.stages) * candidate.run.num_micro_batches
    if tasks > _TASKS:
        return candidate
    if candidate.chunks:
        return _with_better_chunks(candidate)
    farthest = len(candidate.stages) if tasks * len(candidate.stages) <= _FAR_TASKS else 1
    while True:
        changed = [_moved_layers(candidate.stages, farthest), _exchanged(candidate)]
        changed += [_with_other_configs(candidate)] if configs else []
        others = [other for stages in itertools.chain(*changed) if (other := _allowed(candidate, stages)) is not None]
        best = least(others, key=lambda other: other.step_s) if others else candidate
        if best.step_s >= candidate.step_s * (1 - TOLERANCE):
            return candidate
        candidate = best


def _exchanged(candidate: Candidate) -> Iterator[tuple[StageChoice, ...]]:
    """Yields the stages with unlike hosts exchanged: two of them, or of few hosts all in any order."""
    space, kinds = candidate.space, kinds_of(candidate.cluster)
    if space.hosts is None:
        return
    of_sites = [tuple(sorted(kinds[host] for host in hosts)) for hosts in space.hosts]
    sites = {key: s for s, key in enumerate(zip(space.submeshes, of_sites, strict=True))}
    tried = {tuple(of_sites[stage.submesh] for stage in candidate.stages)}
    for order in _orders(len(kinds)):
        on = tuple(tuple(sorted(kinds[order[host]] for host in hosts)) for hosts in candidate.placed)
        if on not in tried:
            tried.add(on)
            keys = [(space.submeshes[stage.submesh], own) for stage, own in zip(candidate.stages, on, strict=True)]
            if all(key in sites for key in keys):
                pairs = zip(candidate.stages, keys, strict=True)
                yield tuple(dataclasses.replace(stage, submesh=sites[key]) for stage, key in pairs)


def _orders(count: int) -> Iterator[Sequence[int]]:
    if count <= _ALL_ORDERS:
        yield from itertools.permutations(range(count))
        return
    for a, b in itertools.combinations(range(count if count <= _PAIRS else 0), 2):
        order = list(range(count))
        order[a], order[b] = b, a
        yield order


def _with_other_configs(candidate: Candidate) -> Iterator[tuple[StageChoice, ...]]:
    """Yields the stages with each one on each other submesh of as many devices, with each of its configs."""
    sizes = [submesh.num_devices for submesh in candidate.space.submeshes]
    for n, stage in enumerate(candidate.stages):
        for s, row in enumerate(candidate.space.configs):
            for c in range(len(row)) if sizes[s] == sizes[stage.submesh] else ():
                if (s, c) != (stage.submesh, stage.config):
                    other = dataclasses.replace(stage, submesh=s, config=c)
                    yield (*candidate.stages[:n], other, *candidate.stages[n + 1 :])


def _allowed(candidate: Candidate, stages: tuple[StageChoice, ...]) -> Candidate | None:
    """The candidate with these stages, if memory does for them and hosts can be filled by them."""
    cost_s = candidate.costs.problem.total_s(stages)
    if not math.isfinite(cost_s):
        return None
    slicing = dataclasses.replace(candidate.slicing, stages=stages, cost_s=cost_s)
    same = [stage.submesh for stage in stages] == [stage.submesh for stage in candidate.stages]
    other = dataclasses.replace(candidate, slicing=slicing, hosts=candidate.hosts if same else None)
    with contextlib.suppress(NoPlanError):
        return fitting(other) if other.placed else None
    return None


def _with_better_chunks(candidate: Candidate) -> Candidate:
    """The candidate with layers moved from chunk to chunk as long as that shortens its step; each gain is kept."""
    others, left = _moved_layers(candidate.stages, len(candidate.stages)), _TRIES
    while left and (stages := next(others, None)) is not None:
        other, left = simulated(dataclasses.replace(candidate, chunks=stages)), left - 1
        if other.step_s < candidate.step_s * (1 - TOLERANCE) and fits(other):
            candidate, others = other, _moved_layers(other.stages, len(other.stages))
    return candidate


def _moved_layers(stages: Sequence[StageChoice], farthest: int) -> Iterator[tuple[StageChoice, ...]]:
    """The stages with a layer less in one and a layer more in another, neighbours first; those between move along."""
    cut, count = [0, *(stage.last + 1 for stage in stages)], len(stages)
    for apart in range(1, min(farthest, count - 1) + 1):
        for first in range(1, count - apart + 1):
            for by in (-1, 1):
                ends = [n + by if first <= place < first + apart else n for place, n in enumerate(cut)]
                if all(a < b for a, b in itertools.pairwise(ends)):
                    pairs = zip(stages, itertools.pairwise(ends), strict=True)
                    yield tuple(dataclasses.replace(stage, first=a, last=b - 1) for stage, (a, b) in pairs)


def under_others(candidates: Sequence[Candidate], schedules: Sequence[str]) -> list[Candidate]:
    """Returns the plans that the shapes of some candidates, the best one first, make under other schedules with their
    submeshes and micro-batches, where they fit, the best first.
    """
    shapes: dict[tuple[object, ...], Candidate] = {}
    for candidate in candidates:
        on = [(stage.submesh, stage.config) for stage in candidate.slicing.stages]
        shape = id(candidate.space), candidate.run.num_micro_batches, candidate.model.num_layers, *on
        shapes.setdefault(shape, candidate)
    before = {_identity(candidate) for candidate in candidates}
    pairs = itertools.product(list(shapes.values())[:_SHAPES], schedules)
    others = [other for plan, schedule in pairs if _identity(other := _unsimulated(plan, schedule)) not in before]
    close = [other for _, other in ordered(_roughly(others), key=lambda pair: pair[0])[:_CLOSE]]
    first = best_first(fitting(other, elsewhere_cut=True) for other in close)
    return best_first([*map(polished, first[:_POLISHED]), *first[_POLISHED:]])


def under(candidate: Candidate, schedule: str) -> Candidate | None:
    """Returns a candidate plan's submeshes and micro-batches under another schedule, simulated, if possible."""
    return fitting(_unsimulated(candidate, schedule), elsewhere_cut=True)


def _unsimulated(candidate: Candidate, schedule: str) -> Candidate:
    slicing = dataclasses.replace(candidate.slicing, lower_bound_s=0.0)  # it is of the other schedule's objective
    costs = candidate.costs.under(schedule)
    return dataclasses.replace(candidate, costs=costs, slicing=slicing, chunks=(), simulated_s=None)


def _roughly(candidates: Sequence[Candidate]) -> Iterator[tuple[float, Candidate]]:
    """Yields those that fit with about their steps' seconds, as few micro-batches tell of many in a full pipeline."""
    for candidate in candidates:
        few, count = 2 * len(candidate.slicing.stages), candidate.run.num_micro_batches
        if count <= 2 * few:
            if (whole := fitting(candidate, elsewhere_cut=True)) is not None:
                yield whole.step_s, candidate
            continue
        runs = (dataclasses.replace(candidate.run, num_micro_batches=number) for number in (few, 2 * few))
        costs = (dataclasses.replace(candidate.costs, run=run) for run in runs)
        some, more = (fitting(dataclasses.replace(candidate, costs=fewer), elsewhere_cut=True) for fewer in costs)
        if some is not None and more is not None:
            yield more.step_s + (count - 2 * few) / few * (more.step_s - some.step_s), candidate


def _identity(candidate: Candidate) -> tuple[object, ...]:
    return id(candidate.space), candidate.run, candidate.model.num_layers, candidate.slicing.stages
