"""Candidate plans under other schedules than those that their shapes were searched under."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from alpa_dejavu._util.ties import ordered
from alpa_dejavu.planning.search._candidate import Candidate, best_first, fits, fitting
from alpa_dejavu.planning.search._polish import polished

__all__ = ["ANY_SCHEDULE", "under", "under_others"]

ANY_SCHEDULE = (
    "1f1b_overlap_friendly", "1f1b", "gpipe", "interleaved", "interleaved_3", "interleaved_4", "zb_h1", "zb_v",
    "v_half", "v_min", "dualpipe_v",
)  # fmt: skip
"""The schedules that train alike: they take all gradients of a step by the same weights. A search begins with the
first."""
_SHAPES, _CLOSE, _POLISHED = 8, 8, 3
"""So many of the best shapes are looked at under each schedule; so many of the best plans among those are simulated,
and polished."""


def under_others(found: Sequence[Candidate], schedules: Sequence[str]) -> list[Candidate]:
    """Returns the candidate plans that the shapes of some others make under each of some schedules, where they fit, the
    best first.

    Args:
        found: simulated candidate plans, the best one first; their submeshes and micro-batches are kept.
        schedules: the names of the schedules.
    """
    shapes: dict[tuple[object, ...], Candidate] = {}
    for one in found:
        on = [(stage.submesh, stage.config) for stage in one.slicing.stages]
        shapes.setdefault((id(one.space), one.run.num_micro_batches, one.model.num_layers, *on), one)
    known = {_named(one) for one in found}
    pairs = itertools.product(list(shapes.values())[:_SHAPES], schedules)
    others = [other for one, schedule in pairs if _named(other := _unsimulated(one, schedule)) not in known]
    close = [other for step_s, other in ordered(_roughly(others), key=lambda each: each[0])[:_CLOSE]]
    first = best_first(made for other in close if (made := _fitting(other)) is not None)
    return best_first([*map(polished, first[:_POLISHED]), *first[_POLISHED:]])


def under(found: Candidate, schedule: str) -> Candidate | None:
    """Returns a candidate plan's submeshes and micro-batches under another schedule, simulated; None if that isn't
    possible there, or doesn't fit into memory.
    """
    return _fitting(_unsimulated(found, schedule))


def _fitting(candidate: Candidate) -> Candidate | None:
    """The candidate simulated, if it fits: its layers weren't cut by what its own schedule keeps in memory."""
    made = fitting(candidate)
    return made if made is not None and fits(made) else None


def _unsimulated(found: Candidate, schedule: str) -> Candidate:
    slicing = dataclasses.replace(found.slicing, lower_bound_s=0.0)  # it is of the other schedule's objective
    return dataclasses.replace(found, costs=found.costs.under(schedule), slicing=slicing, chunks=(), timeline=None)


def _roughly(candidates: Sequence[Candidate]) -> Iterator[tuple[float, Candidate]]:
    """Yields those candidates that fit with about how many seconds their steps take: once a pipeline is filled, each
    micro-batch takes as long as any other, so that few of them tell of many.
    """
    for one in candidates:
        few, all_of_them = 2 * len(one.slicing.stages), one.run.num_micro_batches
        if all_of_them <= 2 * few:
            if (whole := _fitting(one)) is not None:
                yield whole.step_s, one
            continue
        some, more = (_fitting(_with_micro_batches(one, count)) for count in (few, 2 * few))
        if some is not None and more is not None:
            yield more.step_s + (all_of_them - 2 * few) / few * (more.step_s - some.step_s), one


def _with_micro_batches(one: Candidate, count: int) -> Candidate:
    """The candidate with fewer micro-batches of the same size."""
    costs = dataclasses.replace(one.costs, run=dataclasses.replace(one.run, num_micro_batches=count))
    return dataclasses.replace(one, costs=costs)


def _named(one: Candidate) -> tuple[object, ...]:
    return id(one.space), one.run, one.model.num_layers, one.slicing.stages
