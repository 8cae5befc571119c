"""AMP's pipeline cut: so many stages that are alike in all but their layers.

With K stages and B micro-batches it makes (B - 1) times the largest stage, plus all stages, plus what a micro-batch
takes over the K - 1 boundaries, as small as can be.

References:
    Li et al., AMP: Automatically Finding Model Parallel Strategies with Heterogeneity Awareness, NeurIPS 2022, and the
    code that its authors released.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
from numpy.typing import NDArray

from alpa_dejavu._util.compiled import compiled
from alpa_dejavu.problem import Slicing, SlicingProblem, StageChoice, checks
from alpa_dejavu.slicing._base import Cheapest, Slicer, best_of_families, check_has_recurrence
from alpa_dejavu.slicing._baselines import num_equal_stages

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
VARIANTS = ("paper", "released")


@final
@dataclasses.dataclass(frozen=True)
class AmpPipe(Slicer):
    """A slicer that returns the best plan of AMP's dynamic program, which cuts layers over equal submeshes with one
    config.

    On hosts of unlike kinds the stages take the devices kind after kind, as AMP numbers its ranks. AMP knows no limit
    of memory; here a stage that doesn't fit where it stands is left out. Seconds that a stage takes once a step aren't
    looked at, but for the choice between submeshes and configs.

    Attributes:
        variant: "paper": the dynamic program finds the least cost; "released": it does as the authors' code does, which
            may miss it: see `amp_starts`.

    Raises ValueError for another variant.

    References:
        Li et al., AMP, NeurIPS 2022.
    """

    variant: str = "paper"

    def __post_init__(self) -> None:
        checks.one_of("amp_pipe", "variant", self.variant, VARIANTS)

    def slice(self, problem: SlicingProblem) -> Slicing:
        """Returns the cheapest cut that AMP's program makes for any number of equal submeshes and any config."""
        check_has_recurrence("amp_pipe", problem)
        if problem.families is not None:
            return best_of_families(lambda family, _: self.slice(family), problem)
        best = Cheapest(problem)
        for submeshes, config in itertools.product(_rows(problem), range(problem.costs_s.shape[3])):
            best.tried += 1
            stage_s, cut_s = _costs(problem, submeshes, config)
            starts = amp_starts(stage_s, cut_s, problem.num_micro_batches, self.variant)
            if starts:
                lasts = [start - 1 for start in (*starts[1:], problem.num_layers)]
                best.add(tuple(map(StageChoice, starts, lasts, submeshes, itertools.repeat(config))))
        return best.slicing()


def amp_pipe_s(starts: Sequence[int], stage_s: FloatArray, cut_s: FloatArray, num_micro_batches: int) -> float:
    """Returns the seconds that AMP's cost model gives a pipeline of K stages: (B - 1) times the largest stage, plus all
    stages, plus all transfers.

    Args:
        starts: the first layer of each stage.
        stage_s: shape (K, L, L), a micro-batch's forward and backward through layers i..j as stage k.
        cut_s: shape (K - 1, L), the seconds of the transfer from stage k to the next one, which begins with layer l.
        num_micro_batches: the number of micro-batches, B.
    """
    ends = [*starts[1:], stage_s.shape[1]]
    stages = [float(stage_s[k, start, end - 1]) for k, (start, end) in enumerate(zip(starts, ends, strict=True))]
    if math.isinf(max(stages)):
        return math.inf
    cuts = sum(float(cut_s[n, start]) for n, start in enumerate(starts[1:]))
    return (num_micro_batches - 1) * max(stages) + sum(stages) + cuts


def amp_starts(
    stage_s: FloatArray, cut_s: FloatArray, num_micro_batches: int, variant: str = "paper"
) -> tuple[int, ...]:
    """Returns the first layer of each of K pipeline stages as AMP's dynamic program cuts the layers; nothing if there
    is no pipeline.

    Args:
        stage_s: shape (K, L, L), a micro-batch's forward and backward through layers i..j as stage k; inf where that
            can't be.
        cut_s: shape (K - 1, L), the seconds of the transfer from stage k to the next one, which begins with layer l.
        num_micro_batches: the number of micro-batches, B.
        variant: "paper": the stages with the least seconds. "released": those of the authors' code, which differs in
            two
            ways. It forgets the transfers between the stages so far (what it carries on is without them, and a
                candidate
            with its own transfer is compared with the best so far without), so it may take a dear transfer for a cheap
                one.
            And with one micro-batch it doesn't search, but gives all stages equally many layers, the first ones one
                more.
    """
    checks.one_of("amp_pipe", "variant", variant, VARIANTS)
    num_stages, num_layers = stage_s.shape[:2]
    if not num_stages or cut_s.shape != (num_stages - 1, num_layers):
        raise ValueError(f"amp_pipe: stage_s is of shape {stage_s.shape}, so cut_s must be of shape "
                         f"{(max(num_stages - 1, 0), num_layers)}, but it is of {cut_s.shape}")  # fmt: skip
    if num_stages > num_layers:
        return ()
    if variant == "paper":
        stage_s, cut_s = np.array(stage_s, np.float64, order="C"), np.array(cut_s, np.float64, order="C")
        return tuple(_least(stage_s, cut_s, num_micro_batches - 1).tolist())
    if num_micro_batches == 1:
        return tuple(int(part[0]) for part in np.array_split(np.arange(num_layers), num_stages))
    within = np.where(np.tri(num_layers, k=-1, dtype=np.bool_), np.inf, stage_s)
    return _released(within, cut_s, num_micro_batches)


@compiled("(f8[:, :, ::1], f8[:, ::1], i8)")
def _least(stage_s: FloatArray, cut_s: FloatArray, waits: int) -> IntArray:
    """Exact: the least sum under a bound on the largest stage, the bound going down below what was found.

    What lies between a bound and the largest stage of its least sum costs no less than that. `before` is the least sum
    of k stages and of the boundaries behind them, by the layer that comes next.
    """
    num_stages, num_layers = stage_s.shape[:2]
    before = np.full((num_stages, num_layers), np.inf)
    before[0, 0] = 0.0
    starts, best = np.empty(num_stages, np.int64), np.empty(0, np.int64)
    best_s = bound = np.inf
    while True:
        for k in range(1, num_stages):
            now = before[k]
            now[:] = np.inf
            for start in range(k - 1, num_layers - 1):
                so_far, to_next, stages = before[k - 1, start], now[start + 1 :], stage_s[k - 1, start, start:-1]
                for n in range(len(to_next)):
                    total = so_far + stages[n] if stages[n] <= bound else np.inf
                    to_next[n] = total if total < to_next[n] else to_next[n]
            now += cut_s[k - 1]
        end, least, largest = num_layers, np.inf, 0.0
        for k in range(num_stages - 1, -1, -1):
            shortest = np.inf
            for start in range(k, end):
                cost = stage_s[k, start, end - 1]
                if cost <= bound and before[k, start] + cost < shortest:
                    shortest, starts[k] = before[k, start] + cost, start
            if k == num_stages - 1:
                least = shortest
                if not least < best_s:
                    return best
            largest = max(largest, stage_s[k, starts[k], end - 1])
            end = starts[k]
        if least + waits * largest < best_s:
            best_s, best = least + waits * largest, starts.copy()
        bound = np.nextafter(largest, -np.inf)


def _released(stage_s: FloatArray, cut_s: FloatArray, num_micro_batches: int) -> tuple[int, ...]:
    """The released program: by (stages, last layer, largest stage that comes later), without the boundaries before."""
    num_stages, num_layers = stage_s.shape[:2]
    sizes = np.unique(np.append(stage_s[np.isfinite(stage_s)], 0.0))
    numbers = np.arange(len(sizes))
    waits = num_micro_batches - 1
    carried = waits * np.maximum(0.0, stage_s[0, 0, :, None] - sizes)
    chosen = np.full((num_stages, num_layers, len(sizes)), -1, dtype=np.int64)
    for k in range(1, num_stages):
        before, carried = carried, np.full((num_layers, len(sizes)), np.inf)
        for last in range(k, num_layers):
            for start in range(k, last + 1):
                cost, cut = stage_s[k, start, last], cut_s[k - 1, start]
                if math.isinf(cost):
                    continue
                later = np.maximum(np.searchsorted(sizes, cost), numbers)
                total = before[start - 1, later] + waits * np.maximum(0.0, cost - sizes) + cut
                better = total < carried[last]
                carried[last][better] = total[better] - cut
                chosen[k, last][better] = start
    starts, last, largest = [0] * num_stages, num_layers - 1, 0
    for k in range(num_stages - 1, 0, -1):
        starts[k] = int(chosen[k, last, largest])
        if starts[k] < 0:
            return ()
        largest = max(int(np.searchsorted(sizes, stage_s[k, starts[k], last])), largest)
        last = starts[k] - 1
    return tuple(starts)


def _rows(problem: SlicingProblem) -> Iterator[list[int]]:
    """Yields rows with the submesh of each stage: all of one size, and all of one shape where hosts are alike."""
    sizes = problem.submesh_sizes.tolist()
    for size in sorted(set(sizes)):
        count = num_equal_stages(problem, size)
        if not count:
            continue
        alike = [submesh for submesh, devices in enumerate(sizes) if devices == size]
        if problem.sites is None or problem.sites.alike:
            yield from ([submesh] * count for submesh in alike)
            continue
        uses, available = problem.sites.uses.tolist(), problem.sites.available.tolist()
        first = {tuple(uses[submesh]): submesh for submesh in reversed(alike)}
        kinds = [kind for kind, devices in enumerate(available) for _ in range(devices)]
        ranks = [kinds[n * size : (n + 1) * size] for n in range(count)]
        submeshes = [first.get(tuple(map(some.count, range(len(available))))) for some in ranks]
        row = [submesh for submesh in submeshes if submesh is not None]
        if len(row) == count:
            yield row


def _costs(problem: SlicingProblem, submeshes: Sequence[int], config: int) -> tuple[FloatArray, FloatArray]:
    """Returns the seconds of stages and of boundaries as `amp_starts` takes them."""
    count, num_layers = len(submeshes), problem.num_layers
    stage_s = np.asarray(problem.costs_s[:, :, submeshes, config]).transpose(2, 0, 1)
    if problem.max_n_succ_stages is not None:
        followed = np.arange(count - 1, -1, -1)[:, None, None]
        spare = np.asarray(problem.max_n_succ_stages[:, :, submeshes, config]).transpose(2, 0, 1)
        stage_s = np.where(spare >= followed, stage_s, np.inf)
    sites = problem.sites
    if sites is None:
        return stage_s, np.zeros((count - 1, num_layers))
    return stage_s, sites.crossing_s[:, sites.links[submeshes[:-1], submeshes[1:]]].T
