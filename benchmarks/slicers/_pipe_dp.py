"""The program of the project's first sketch, written anew, and its problem.

Exactly k stages of L layers, such that (B - 1) times the largest stage plus the sum of `cuts_s[cut_j][j]` is least:
what stages cost in all is the same however they are cut.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu.problem import Sites, SlicingProblem, StageChoice
from harness import asked_within

MICRO_BATCHES = 3


def drawn(num_layers: int, num_stages: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Layers' costs, shape (L,), and boundaries' costs, shape (L, k - 1): integers from 5 to 9.

    Entry (l, j) is what it costs to end stage j with layer l.
    """
    rng = np.random.default_rng(seed)
    return rng.integers(5, 10, num_layers), rng.integers(5, 10, (num_layers, num_stages - 1))


def cost(layers_s: NDArray[np.int64], cuts_s: NDArray[np.int64], starts: tuple[int, ...]) -> float:
    """The sketch's objective of stages that begin with layer 0 and these."""
    edges = [0, *starts, len(layers_s)]
    largest = max(int(layers_s[first:end].sum()) for first, end in itertools.pairwise(edges))
    return (MICRO_BATCHES - 1) * largest + float(sum(cuts_s[start - 1, j] for j, start in enumerate(starts)))


def pipe_dp(layers_s: list[int], cuts_s: list[list[int]], num_stages: int) -> tuple[int, ...]:
    """The sketch's program, whose recurrence is AMP's: by (last layer, stages, largest stage that comes later).

    As there, the sum of a stage's layers is added up, and its place among the sizes is looked for, each time anew; to
    look both up in tables makes it about 40 times faster at (64, 12).

    References:
        Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS 2022.
    """
    num_layers, waits = len(layers_s), MICRO_BATCHES - 1
    ranges = itertools.combinations(range(num_layers + 1), 2)
    sizes = sorted({0, *(sum(layers_s[first:end]) for first, end in ranges)})
    least: list[list[float]] = [
        [max(0, sum(layers_s[: last + 1]) - size) * waits for size in sizes] for last in range(num_layers)
    ]
    starts: list[list[tuple[int, ...]]] = [[()] * len(sizes) for _ in range(num_layers)]
    for stage in range(1, num_stages):
        before, least = least, [[math.inf] * len(sizes) for _ in range(num_layers)]
        begun, starts = starts, [[()] * len(sizes) for _ in range(num_layers)]
        for last in range(stage, num_layers):
            for n, later in enumerate(sizes):
                for start in range(stage, last + 1):
                    size = sum(layers_s[start : last + 1])
                    place = sizes.index(max(size, later))
                    total = before[start - 1][place] + waits * max(0, size - later) + cuts_s[start - 1][stage - 1]
                    if total < least[last][n]:
                        least[last][n], starts[last][n] = total, (*begun[start - 1][place], start)
    return starts[-1][0]


def pipe_dp_within(
    limit_s: float, layers_s: NDArray[np.int64], cuts_s: NDArray[np.int64], num_stages: int
) -> tuple[float, tuple[int, ...]] | None:
    """Wall seconds and answer of the program in a process of its own; None if it took longer than the limit."""
    given = layers_s.tolist(), cuts_s.tolist(), num_stages
    answer: tuple[float, tuple[int, ...]] | None = asked_within(limit_s, _timed, *given)
    return answer


def _timed(layers_s: list[int], cuts_s: list[list[int]], num_stages: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    yield 0.0, ()
    started = time.perf_counter()
    starts = pipe_dp(layers_s, cuts_s, num_stages)
    yield time.perf_counter() - started, starts


def as_slicing(layers_s: NDArray[np.int64], cuts_s: NDArray[np.int64], num_stages: int) -> SlicingProblem:
    """The same as a slicing problem, which costs what all layers cost more.

    What a boundary costs depends on which one it is, so each stage has a submesh of its own, with one device more than
    the one before. Submesh j lets k - 1 - j stages follow, so the stage in place p has at most p + 1 devices; as all
    devices are to be used, it has just as many.
    """
    num_layers = len(layers_s)
    ends = np.concatenate([[0], np.cumsum(layers_s)]).astype(float)
    within = np.arange(num_layers)[:, None] <= np.arange(num_layers)[None, :]
    sums = np.where(within, ends[None, 1:] - ends[:-1, None], np.inf)
    shape = num_layers, num_layers, num_stages, 1
    sizes = np.arange(1, num_stages + 1)
    once = np.zeros(shape)
    once[:, :, :-1, 0] = cuts_s[None, :, :]
    return SlicingProblem(
        np.ascontiguousarray(np.broadcast_to(sums[:, :, None, None], shape)),
        sizes,
        int(sizes.sum()),
        MICRO_BATCHES,
        np.ascontiguousarray(np.broadcast_to((num_stages - sizes)[:, None], shape)),
        once,
        num_stages,
    )


def on_unlike_hosts(layers_s: NDArray[np.int64], cuts_s: NDArray[np.int64], num_stages: int) -> SlicingProblem:
    """The same for `amp_pipe`, which counts boundaries apart from stages: each stage on a kind of host of its own."""
    num_layers = len(layers_s)
    alike = as_slicing(layers_s, cuts_s, num_stages)
    links = np.minimum(np.arange(num_stages), num_stages - 2)
    crossing = np.zeros((num_layers, num_stages - 1))
    crossing[1:] = cuts_s[:-1]
    one = np.ones(num_stages, dtype=np.int64)
    sites = Sites(np.eye(num_stages, dtype=np.int64), one, np.repeat(links[:, None], num_stages, axis=1), crossing)
    return SlicingProblem(alike.costs_s, one, num_stages, MICRO_BATCHES, sites=sites)


def starts_of(stages: tuple[StageChoice, ...]) -> tuple[int, ...]:
    """The first layer of each stage but the first."""
    return tuple(stage.first for stage in stages[1:])
