"""Plans drawn from what the differentiable program makes of its paths, and put together anew from their stages."""

from __future__ import annotations

from typing import Any, final

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray, PlanTable, firsts_of, is_stage_of
from alpa_dejavu.slicing.relaxation._chain import Annealed, BoundAndPrices
from alpa_dejavu.slicing.relaxation._lattice import DRAWN_AT, OVERRUN, Lattice
from alpa_dejavu.slicing.relaxation._recombine import recombined

SAMPLES, SEGMENTS, PLACES = 8, 150, 20
BOUNDS, WORK, AGAIN = (6, 10), 5e6, 2
"""So many plans are drawn from each start at each temperature; so many of their stages are recombined for so many
bounds, so often."""


@final
class StageChances:
    """The probabilities of the next stage's choice (submesh and config, one of Z) and last layer, for each of N starts.

    `by_choice`, of shape (N, L, G, Z), is by the stage's first layer and the group of the stage before; `by_end`, of
    shape (N, L, Z, L), by its first layer and choice. `rest` and `later` are what `soft` returns for each start.
    """

    def __init__(self, lattice: Lattice, chain: BoundAndPrices, rest: Any, later: Any, temperature: float) -> None:
        arrays, size = lattice.arrays, lattice.problem.num_layers
        self._group = arrays.group.argmax(axis=1)
        bound = np.exp(chain.log_bound)[:, None, None, None]
        cost = (arrays.cost + arrays.entry_cost[:, None])[None, :size, :size]
        path = arrays.weight[None, :size, :size] + arrays.steepness * np.maximum(cost - bound, 0.0)
        path = path + (chain.prices @ arrays.uses.T)[:, None, None] + arrays.per_stage * bound
        path = path + (rest[:, 1 : size + 1] @ arrays.group.T)[:, None]
        if lattice.limited:
            followed = (later[:, 1 : size + 1] @ arrays.group.T)[:, None]
            path = path + OVERRUN * np.maximum(followed - arrays.followers[None, :size, :size], 0.0)
        low = path.min(axis=2, keepdims=True)
        shares = np.exp((low - path) / temperature)
        total = shares.sum(axis=2)
        self.by_end = np.swapaxes(shares / total[:, :, None], 2, 3)
        after = (low[:, :, 0] - temperature * np.log(total))[:, :, None] + arrays.entry[None, :size]
        chosen = np.exp((after.min(axis=3, keepdims=True) - after) / temperature)
        self.by_choice = chosen / chosen.sum(axis=3, keepdims=True)

    def drawn(self, rng: np.random.Generator, samples: int) -> tuple[IntArray, IntArray, IntArray]:
        """Draws `samples` plans for each start; the first of each takes the likeliest stage at every step.

        Returns one past each stage's last layer, and each stage's choice, both of shape (N * samples, K); and the
        number of stages.
        """
        num_starts, size = self.by_end.shape[:2]
        start = np.repeat(np.arange(num_starts), samples)
        greedy = np.arange(len(start)) % samples == 0
        layer, group = np.zeros_like(start), np.zeros_like(start)
        ends, chosen, count = [], [], np.zeros_like(start)
        while (layer < size).any():
            going, at = layer < size, np.minimum(layer, size - 1)
            choice = picked(self.by_choice[start, at, group], greedy, rng)
            last = picked(self.by_end[start, at, choice], greedy, rng)
            layer = np.where(going, np.maximum(last, at) + 1, layer)
            group = np.where(going, self._group[choice], group)
            count += going
            ends.append(layer)
            chosen.append(np.where(going, choice, 0))
        return np.stack(ends, axis=1), np.stack(chosen, axis=1), count


def picked(probabilities: FloatArray, greedy: Any, rng: np.random.Generator) -> IntArray:
    """Returns an index for each row of probabilities, drawn by them, or the likeliest where `greedy` is true."""
    sums = probabilities.cumsum(axis=1)
    below = (sums < rng.random((len(sums), 1)) * sums[:, -1:]).sum(axis=1)
    return np.asarray(np.where(greedy, probabilities.argmax(axis=1), np.minimum(below, sums.shape[1] - 1)))


def drawn(lattice: Lattice, table: PlanTable, ended: Annealed, seed: int) -> Batch | None:
    """Draws plans, recombines their stages, and returns those that are allowed; None if none is."""
    rng = np.random.default_rng(seed)
    paths = []
    for heat, rest, later in zip(DRAWN_AT, ended.rest, ended.later, strict=True):
        chances = StageChances(lattice, ended.end, rest, later, float(ended.temperatures[-1]) * heat)
        paths.append(chances.drawn(rng, SAMPLES))
    all_ends, all_chosen, counts = zip(*paths, strict=True)
    width = max(part.shape[1] for part in all_ends)
    ends, chosen = (
        np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1])), mode="edge") for part in parts])
        for parts in (all_ends, all_chosen)
    )
    count = np.concatenate(counts)
    plans, segments = lattice.batch(ends, chosen, count), _segments(lattice, ends, count)
    work = len(segments) * len(lattice.choices.group) * float(np.prod(lattice.choices.available + 1.0))
    for _ in range(AGAIN):
        bounds = _promising(lattice, table, plans, ended, int(np.clip(WORK / work, *BOUNDS)))
        again = recombined(lattice, segments, bounds)
        plans = (plans if again is None else Batch.joined([plans, again])).distinct()
    allowed = plans.take(table.allowed(plans))
    return allowed if len(allowed) else None


def _promising(lattice: Lattice, table: PlanTable, plans: Batch, ended: Annealed, most: int) -> FloatArray:
    """Returns bounds worth a closer look: the largest stages of the best plans, and where the starts have been."""
    totals = table.totals_s(plans)
    best = plans.take(np.argsort(totals, kind="stable")[:most][np.sort(totals)[:most] < np.inf])
    largest = (table.costs_s(best) + table.crossing_s(best)).max(axis=1) / lattice.unit_s
    last = ended.end.log_bound[np.argsort(ended.values[-1], kind="stable")[:most]]
    been = np.linspace(np.min(ended.end.log_bound), np.max(ended.history.log_bound), most)
    return np.asarray(np.exp(np.unique(np.round(np.concatenate([np.log(largest), last, been]), 2))))


def _segments(lattice: Lattice, ends: IntArray, count: IntArray) -> IntArray:
    """Returns segments of layers that were drawn most often, or lie between cuts that were; shape (E, 2)."""
    size = lattice.problem.num_layers
    is_stage = is_stage_of(ends, count)
    often = np.zeros((size, size + 1))
    np.add.at(often, (firsts_of(ends)[is_stage], ends[is_stage]), 1.0)
    at_cut = often.sum(axis=1)
    cuts = np.sort(np.append(1 + np.argsort(-at_cut[1:], kind="stable")[: PLACES - 1], [0, size]))
    between = np.zeros_like(often)
    between[np.ix_(cuts[cuts < size], cuts)] = 1e-3
    score = np.triu(often + between, 1)
    kept = np.argsort(-score, axis=None, kind="stable")[: (score > 0).sum()]
    first, end = np.divmod(kept[: SEGMENTS + PLACES * (PLACES + 1) // 2], size + 1)
    return np.column_stack([first, end - 1])
