"""The search around the slicer: how many micro-batches, how many layers, how many stages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from alpa_dejavu._question import Clock, Question, Source
from alpa_dejavu.search import Candidate, neighbours

__all__ = ["candidates"]


def candidates(
    question: Question, source: Source, layers: Sequence[int], counts: Sequence[int], clock: Clock
) -> list[Candidate]:
    """Plans worth comparing, the shortest simulated step first; empty if nothing fits.

    The numbers of micro-batches are tried for the first number of layers, every other one and then those beside the
    best; the other numbers of layers for the best number of micro-batches; other numbers of stages for the best of all.
    """
    tried: dict[int, Candidate | None] = {}

    def attempt(count: int) -> None:
        if count not in tried:
            tried[count] = question.best(source, layers[0], count, clock)

    for count in counts[::-2]:
        attempt(count)
    found = _ordered(tried.values())
    place = counts.index(found[0].run.num_micro_batches) if found else None
    for count in counts if place is None else counts[max(place - 1, 0) : place + 2]:
        attempt(count)
    found = _ordered(tried.values())
    if not found:
        return []
    best = found[0].run.num_micro_batches
    found = _ordered([*found, *(question.best(source, number, best, clock) for number in layers[1:])])
    found = _ordered([*found, *neighbours(found[0], question.cluster, question.slicer)])
    clock.lap("slicing")
    return found


def _ordered(found: Iterable[Candidate | None]) -> list[Candidate]:
    """Those that there are, the shortest step first."""
    return sorted((one for one in found if one is not None), key=lambda one: one.step_s)
