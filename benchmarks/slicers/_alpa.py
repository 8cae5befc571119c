"""Alpa's own programs, compiled by numba and warmed, here or in a process that can be stopped."""

from __future__ import annotations

import dataclasses
import importlib
import math
import time
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from alpa_dejavu.problem import SlicingProblem, StageChoice
from harness import asked_within

FIRST, SECOND = "training_dp", "training_dp_2"
PEERS = (FIRST, SECOND)
_STARTING_S = 300.0
"""How long importing and compiling may take."""


@final
@dataclasses.dataclass(frozen=True)
class Solved:
    """An answer of Alpa's.

    Attributes:
        seconds: of wall time, once compiled.
        stages: none if it found none.
        cost_s: by the problem, in float64; infinite without stages.
        said_s: what Alpa's program says.
        warm_s: what importing and compiling took, if that is known.
    """

    seconds: float
    stages: tuple[StageChoice, ...]
    cost_s: float
    said_s: float
    warm_s: float = 0.0


def solve(peer: str, problem: SlicingProblem) -> Solved:
    """Alpa's answer. A problem has nothing that Alpa's arguments haven't: no cost once a step, no sites."""
    room = np.minimum(problem.room, 4096)
    shapes = tuple((1, int(size)) for size in problem.submesh_sizes)
    started = time.perf_counter()
    said, found = _answer(peer, problem, shapes, room)
    seconds = time.perf_counter() - started
    stages = tuple(StageChoice(int(first), int(end) - 1, int(s), int(c)) for (first, end), s, c in found or ())
    return Solved(seconds, stages, problem.total_s(stages) if stages else math.inf, float(said))


def warm(peer: str, problem: SlicingProblem) -> float:
    """Compiles a program for problems with as many submeshes; seconds that it took."""
    started = time.perf_counter()
    few = np.ascontiguousarray(problem.costs_s[:2, :2])
    room = np.full(few.shape, 4096, dtype=np.int64)
    solve(peer, SlicingProblem(few, problem.submesh_sizes, 2, 2, room))
    return time.perf_counter() - started


def solve_within(limit_s: float, peer: str, problem: SlicingProblem) -> Solved | None:
    """The answer of a process of its own, which compiles first; None if it took longer than the limit."""
    answer: Solved | None = asked_within(limit_s, _warm_and_solved, peer, problem, ready_s=_STARTING_S)
    return answer


def _warm_and_solved(peer: str, problem: SlicingProblem) -> Iterator[Solved | None]:
    warm_s = warm(peer, problem)
    yield None
    yield dataclasses.replace(solve(peer, problem), warm_s=warm_s)


def _answer(peer: str, problem: SlicingProblem, shapes: tuple[tuple[int, int], ...], room: Any) -> tuple[float, Any]:
    programs = importlib.import_module("alpa.pipeline_parallel.stage_construction")
    devices, size, costs = problem.num_devices, problem.num_micro_batches, problem.costs_s
    if peer == FIRST:
        given = len(costs), devices, size, shapes, costs.shape[3], costs, room
        answer: tuple[float, Any] = programs.training_dp(*given)
        return answer
    try:
        answer = programs.training_dp_2(devices, size, shapes, costs, room)
    except AssertionError:
        # Its word for "no solution"; it leaves its timer running, and the next call would trip over that.
        programs.timers("stage-construction-dp").reset()
        return math.inf, None
    return answer
