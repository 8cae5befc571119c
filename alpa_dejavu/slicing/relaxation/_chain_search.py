"""From a problem to plans through the chain: random starts, the anneal, plans drawn, and choices filled in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from alpa_dejavu.slicing.relaxation import _blocks
from alpa_dejavu.slicing.relaxation._batch import Batch, FloatArray, IntArray, Table, firsts_of, there_of
from alpa_dejavu.slicing.relaxation._lattice import DRAWN_AT, SMALL, Arrays, Lattice
from alpa_dejavu.slicing.relaxation._recombine import recombined
from alpa_dejavu.slicing.relaxation._sample import Policy

HOTTEST, COLDEST = 3e-2, 2e-4
"""Temperatures, in units."""
SAMPLES, CUTS, SEGMENTS, PLACES = 8, 32, 150, 20
BOUNDS, WORK = (3, 10), 5e6
"""So many plans are drawn from each start at each temperature, so many of all of their cuts are filled in, and
so many of their stages are recombined."""


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


class Drawn(NamedTuple):
    """The plans drawn from an anneal, None if none is allowed; and segments of layers to combine into plans: first and
    last layer of each, shape (E, 2).
    """

    plans: Batch | None
    segments: IntArray


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


def drawn(lattice: Lattice, table: Table, ended: Annealed, seed: int) -> Drawn:
    """Draws allowed plans (cuts of layers into stages, with submeshes and configs) from an anneal's probabilities.

    Submeshes and configs are as drawn, or chosen anew for the drawn cuts; and stages of several plans are recombined.

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
    columns = list(zip(*paths, strict=True))
    ends, chosen = (_joined(column) for column in columns[:2])
    count, cost = (np.concatenate(column) for column in columns[2:])
    start = np.tile(np.repeat(np.arange(len(ended.log_bound)), SAMPLES), len(paths))
    found = [lattice.batch(ends, chosen, count)]
    own = (lattice.arrays.share * np.exp(ended.log_bound) - ended.prices.sum(axis=1))[start]
    order = np.argsort(cost + own, kind="stable")
    if lattice.problem.num_stages is not None:
        order = order[count[order] == lattice.problem.num_stages]
    _, first = np.unique(np.column_stack([ends, count])[order], axis=0, return_index=True)
    best = order[np.sort(first)[:CUTS]]
    if len(best):
        whole = _blocks.filled(lattice, ends[best], count[best], np.exp(ended.log_bound[start[best]]))
        found += [whole] if whole is not None else []
    segments = _segments(lattice, ends, count)
    work = len(segments) * len(lattice.choices.group) * float(np.prod(lattice.choices.available + 1.0))
    bounds = _promising(lattice, table, Batch.joined(found), ended, int(np.clip(WORK / work, *BOUNDS)))
    again = recombined(lattice, segments, bounds)
    found += [again] if again is not None else []
    joined = Batch.joined(found).distinct()
    allowed = joined.take(table.allowed(joined))
    return Drawn(allowed if len(allowed) else None, segments)


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
    there = there_of(ends, count)
    often = np.zeros((size, size + 1))
    np.add.at(often, (firsts_of(ends)[there], ends[there]), 1.0)
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
