"""The search around the slicer: how many micro-batches, how many layers, how many stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from alpa_dejavu._question import Clock, Question
from alpa_dejavu.model_source import ModelSource
from alpa_dejavu.search import Candidate, neighbours

__all__ = ["candidates"]


def candidates(
    question: Question, source: ModelSource, layers: Sequence[int], counts: Sequence[int], clock: Clock
) -> list[Candidate]:
    """Plans worth comparing, the shortest simulated step first; empty if nothing fits.

    The numbers of micro-batches are tried for the first number of layers; the other numbers of layers for the best
    number of micro-batches; other numbers of stages for the best of all.
    """
    found = _by_count(lambda count: question.best(source, layers[0], count, clock), counts)
    if not found:
        return []
    best = found[0].run.num_micro_batches
    found = _ordered([*found, *(question.best(source, number, best, clock) for number in layers[1:])])
    found = _ordered([*found, *neighbours(found[0], question.cluster, question.slicer)])
    clock.lap("slicing")
    return found


def _by_count(best: Callable[[int], Candidate | None], counts: Sequence[int]) -> list[Candidate]:
    """The best plans for some numbers of micro-batches: every other one from the largest on, as long as steps get
    shorter, and those beside the best; all numbers if nothing was found.
    """
    tried: dict[int, Candidate | None] = {}
    shortest = math.inf
    for count in counts[::-2]:
        tried[count] = found = best(count)
        if shortest < math.inf and (found is None or found.step_s > shortest):
            break
        shortest = math.inf if found is None else found.step_s
    order = _ordered(tried.values())
    place = counts.index(order[0].run.num_micro_batches) if order else None
    for count in counts if place is None else counts[max(place - 1, 0) : place + 2]:
        if count not in tried:
            tried[count] = best(count)
    return _ordered(tried.values())


def _ordered(found: Iterable[Candidate | None]) -> list[Candidate]:
    """Those that there are, the shortest step first."""
    return sorted((one for one in found if one is not None), key=lambda one: one.step_s)
