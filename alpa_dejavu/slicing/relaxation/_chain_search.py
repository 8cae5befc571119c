"""From a problem to plans through the chain: random starts, the anneal, plans drawn, and choices filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray, Table, firsts_of, is_stage_of
from alpa_dejavu.slicing.relaxation._lattice import DRAWN_AT, SMALL, Arrays, Lattice
from alpa_dejavu.slicing.relaxation._recombine import recombined
from alpa_dejavu.slicing.relaxation._sample import Policy

HOTTEST, COLDEST = 3e-2, 2e-4
"""Temperatures, in units."""
SAMPLES, SEGMENTS, PLACES = 8, 150, 20
BOUNDS, WORK, AGAIN = (6, 10), 5e6, 2
"""So many plans are drawn from each start at each temperature; so many of their stages are recombined for so many
bounds, so often."""


class Annealed(NamedTuple):
    """The results of annealing the dynamic program over L layers for one slicing problem, from N starts at T
    temperatures, as NumPy arrays; in units of time.

    Attributes:
        log_bound: shape (N,), logarithms of the bounds on the largest stage at which starts ended.
        prices: shape (N, R), prices of all that there is of each of R resources at which they ended.
        history: both at each temperature, shapes (T, N) and (T, N, R).
        values: shape (T, N), the relaxed costs.
        rest: shape (3, N, L + 1, G), soft minima of the costs from a layer on after a stage of one of G groups of
            submeshes, at the three temperatures at which plans are drawn.
        later: shape (3, N, L + 1, G), how many stages these have, on the mean. In both, L is rounded up.
        temperatures: shape (T,).
    """

    log_bound: Any
    prices: Any
    history: tuple[Any, Any]
    values: Any
    rest: Any
    later: Any
    temperatures: Any


def anneal(
    lattices: Sequence[Lattice], num_starts: int, rounds: int, seed: int, begun: Sequence[tuple[Any, Any]] | None = None
) -> list[Annealed]:
    """Anneals the dynamic program over layers for slicing problems of the same shapes, and returns each problem's
    result.

    Args:
        lattices: the problems, prepared for the relaxations.
        num_starts: how many random starts there are.
        rounds: how many temperatures.
        seed: the seed of the random starts.
        begun: bounds (their logarithms) and prices to start from, for each problem; None: starts are random.
    """
    from alpa_dejavu.slicing.relaxation._chain import Chain, annealed

    rng = np.random.default_rng(seed)
    if begun is None:
        begun = [_random(lattice, rng, num_starts) for lattice in lattices]
        hottest = HOTTEST
    else:
        hottest = HOTTEST / 10
    arrays = Arrays(*(np.stack(parts) for parts in zip(*(lattice.arrays for lattice in lattices), strict=True)))
    starts = Chain(*(np.stack(parts).astype(np.float32) for parts in zip(*begun, strict=True)))
    temperatures = np.geomspace(hottest, COLDEST, rounds).astype(np.float32)
    limited = any(lattice.limited for lattice in lattices) or lattices[0].arrays.cost.shape[0] == SMALL
    chain, history, values, last = annealed(arrays, starts, temperatures, limited)
    parts = [np.asarray(part) for part in (*chain, *history, values, *last)]
    return [
        Annealed(bound, prices, (bounds, all_prices), value, rest, later, temperatures)
        for bound, prices, bounds, all_prices, value, rest, later in zip(*parts, strict=True)
    ]


def _random(lattice: Lattice, rng: np.random.Generator, num_starts: int) -> tuple[FloatArray, FloatArray]:
    """Bounds spread evenly over what they may be, with chance; prices of any size."""
    places = (rng.permutation(num_starts) + rng.random(num_starts)) / num_starts
    log_bound = np.log(lattice.reference) + np.log(lattice.highest / lattice.reference) * places
    prices = np.exp(rng.uniform(np.log(0.05), np.log(3.0), (num_starts, lattice.arrays.uses.shape[1])))
    return log_bound, prices * lattice.arrays.offered


def drawn(lattice: Lattice, table: Table, ended: Annealed, seed: int) -> Batch | None:
    """Draws plans (cuts of layers into stages, with submeshes and configs) from an anneal's probabilities, recombines
    their stages, and returns those that are allowed; None if none is.

    Args:
        lattice: the slicing problem, prepared for the relaxations.
        table: the problem's arrays, which give the costs of plans.
        ended: the end of the anneal.
        seed: the seed of the draws.
    """
    rng = np.random.default_rng(seed)
    paths = []
    for heat, rest, later in zip(DRAWN_AT, ended.rest, ended.later, strict=True):
        policy = Policy(lattice, ended.log_bound, ended.prices, rest, later, float(ended.temperatures[-1]) * heat)
        paths.append(policy.drawn(rng, SAMPLES))
    all_ends, all_chosen, counts = zip(*paths, strict=True)
    ends, chosen, count = _joined(all_ends), _joined(all_chosen), np.concatenate(counts)
    plans = lattice.batch(ends, chosen, count)
    segments = _segments(lattice, ends, count)
    work = len(segments) * len(lattice.choices.group) * float(np.prod(lattice.choices.available + 1.0))
    for _ in range(AGAIN):
        bounds = _promising(lattice, table, plans, ended, int(np.clip(WORK / work, *BOUNDS)))
        again = recombined(lattice, segments, bounds)
        plans = (plans if again is None else Batch.joined([plans, again])).distinct()
    allowed = plans.take(table.allowed(plans))
    return allowed if len(allowed) else None


def _promising(lattice: Lattice, table: Table, plans: Batch, ended: Annealed, most: int) -> FloatArray:
    """Bounds that are worth a closer look: the largest stages of the best plans, and where the starts have been."""
    totals = table.totals_s(plans)
    best = plans.take(np.argsort(totals, kind="stable")[:most][np.sort(totals)[:most] < np.inf])
    largest = table.largest_s(best) / lattice.unit_s
    last = ended.log_bound[np.argsort(ended.values[-1], kind="stable")[:most]]
    been = np.linspace(np.min(ended.log_bound), np.max(ended.history[0]), most)
    return np.asarray(np.exp(np.unique(np.round(np.concatenate([np.log(largest), last, been]), 2))))


def _segments(lattice: Lattice, ends: IntArray, count: IntArray) -> IntArray:
    """Segments of layers that were drawn most often, or lie between cuts that were; shape (E, 2)."""
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


def _joined(parts: Sequence[IntArray]) -> IntArray:
    """Rows of unlike widths below each other; the last column is repeated."""
    width = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1])), mode="edge") for part in parts])
